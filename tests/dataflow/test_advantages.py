"""Hand-worked groups, and what holds for every group."""

import math
from typing import get_args, get_type_hints

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from astraflow.config import TrainerSection
from astraflow.dataflow.advantages import ADVANTAGES, dr_grpo, grpo, rloo
from astraflow.errors import EmptyGroupError

groups = arrays(np.float64, st.integers(1, 16), elements=st.floats(-100, 100, width=32))
every = pytest.mark.parametrize("name", sorted(ADVANTAGES))
centred = pytest.mark.parametrize("name", sorted(ADVANTAGES.keys() - {"reward", "gae"}))


def test_group_of_four_by_hand() -> None:
    rewards_G = np.array([1.0, 0.0, 0.0, 1.0])  # mean 1/2, squared deviations sum to 1, std = sqrt(1/3)
    assert dr_grpo(rewards_G).tolist() == [0.5, -0.5, -0.5, 0.5]
    np.testing.assert_allclose(grpo(rewards_G), np.array([0.5, -0.5, -0.5, 0.5]) / (math.sqrt(1 / 3) + 1e-4))
    np.testing.assert_allclose(rloo(rewards_G), [2 / 3, -2 / 3, -2 / 3, 2 / 3])  # 1 − mean(0, 0, 1), 0 − mean(1, 0, 1)


def test_rewards_can_be_advantages_as_they_are() -> None:
    assert ADVANTAGES["reward"](np.array([0.5, 0.5, 2.0])).tolist() == [0.5, 0.5, 2.0]


def test_std_divides_by_members_minus_one() -> None:
    np.testing.assert_allclose(grpo(np.array([0.0, 1.0])), [-0.7070, 0.7070], atol=1e-4)


def test_rloo_is_reward_minus_mean_of_the_others() -> None:
    rewards_G = np.array([0.2, 1.2, 0.0, 0.7, 1.2])
    others_G = [np.delete(rewards_G, i).mean() for i in range(5)]
    np.testing.assert_allclose(rloo(rewards_G), rewards_G - others_G)


@centred
def test_group_of_one_has_no_advantage(name: str) -> None:
    assert ADVANTAGES[name](np.array([3.5])).tolist() == [0.0]


@centred
def test_equal_rewards_give_exact_zeros(name: str) -> None:
    # mean(0.1, 0.1, 0.1) is 0.10000000000000002
    assert ADVANTAGES[name](np.array([0.1, 0.1, 0.1])).tolist() == [0.0, 0.0, 0.0]


@every
def test_empty_group_is_refused(name: str) -> None:
    with pytest.raises(EmptyGroupError):
        ADVANTAGES[name](np.array([]))


@every
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.filterwarnings("ignore:invalid value")
def test_reward_that_is_no_number_shows_in_the_advantages(name: str, bad: float, size: int) -> None:
    for rewards_G in (np.array([bad, 0.0, 1.0][:size]), np.full(size, bad)):
        assert not np.isfinite(ADVANTAGES[name](rewards_G)).all()


@centred
@given(rewards_G=groups)
def test_advantages_sum_to_zero_and_keep_the_order_of_rewards(name: str, rewards_G: np.ndarray) -> None:
    advantages_G = ADVANTAGES[name](rewards_G)
    assert advantages_G.shape == rewards_G.shape
    assert abs(advantages_G.sum()) <= 1e-9 * max(1.0, np.abs(rewards_G).max()) / 1e-4
    by_reward = advantages_G[np.argsort(rewards_G, kind="stable")]
    assert (np.diff(by_reward) >= 0).all()


@centred
@given(rewards_G=groups, shift=st.floats(-10, 10))
def test_adding_a_constant_to_all_rewards_changes_nothing(name: str, rewards_G: np.ndarray, shift: float) -> None:
    rounding = 1e-12 * 100 / 1e-4
    change = ADVANTAGES[name](rewards_G + shift) - ADVANTAGES[name](rewards_G)
    assert np.abs(change).max() <= rounding


def test_every_name_of_the_run_file_has_a_function() -> None:
    assert sorted(get_args(get_type_hints(TrainerSection)["advantage"])) == sorted(ADVANTAGES)
