"""GAE by hand, and against its definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.learners.gae import Floats, at_last, gae

TWO = np.array([0, 0, 0, 2, 2])  # trajectories of 3 and 2 sampled tokens; number 1 has none


def both(rewards: list[float], values: list[float], *, gamma: float, lam: float) -> tuple[list[float], list[float]]:
    sequence_M = TWO if len(rewards) == 5 else np.zeros(len(rewards), np.int64)
    advantages, returns = gae(np.array(rewards), np.array(values), sequence_M, gamma=gamma, gae_lambda=lam)
    return advantages.tolist(), returns.tolist()


def test_lambda_1_is_monte_carlo() -> None:
    advantages, returns = both([0, 0, 8, 0, -2], [1, 2, 3, 4, 5], gamma=1, lam=1)
    assert returns == [8, 8, 8, -2, -2]
    assert advantages == [7, 6, 5, -6, -7]
    _, discounted = both([0, 0, 8, 0, -2], [1, 2, 3, 4, 5], gamma=0.5, lam=1)
    assert discounted == [2, 4, 8, -1, -2]


def test_lambda_0_looks_one_token_ahead() -> None:
    advantages, returns = both([0, 0, 8, 0, -2], [1, 2, 3, 4, 5], gamma=1, lam=0)
    assert advantages == [1, 1, 5, 1, -7]
    assert returns == [2, 3, 8, 5, -2]
    assert both([0, 0, 8, 0, -2], [1, 2, 3, 4, 5], gamma=0.5, lam=0)[1] == [1, 1.5, 8, 2.5, -2]


def test_in_between_by_hand() -> None:
    # δ = 0.5·2 − 1, 0.5·4 − 2, 8 − 4 = 0, 0, 4, and each is worth γλ = 1/4 one token earlier.
    assert both([0, 0, 8], [1, 2, 4], gamma=0.5, lam=0.5) == ([0.25, 1, 4], [1.25, 3, 8])


def test_a_penalty_of_each_token_is_in_the_returns_of_those_before_it() -> None:
    assert both([-1, -2, 8 - 3], [0, 0, 0], gamma=1, lam=1)[1] == [2, 3, 5]


def test_a_reward_is_earned_at_the_last_token_of_its_trajectory() -> None:
    assert at_last(np.array([3.0, 3, 3, 7, 7]), TWO).tolist() == [0, 0, 3, 0, 7]
    assert at_last(np.array([3.0, 7.0]), np.array([4, 5])).tolist() == [3, 7]
    assert at_last(np.zeros(0), np.zeros(0, np.int64)).tolist() == []


def test_no_tokens_no_advantages() -> None:
    assert both([], [], gamma=1, lam=1) == ([], [])


def plain(rewards: Floats, values: Floats, gamma: float, lam: float) -> list[float]:
    """Σ_k (γλ)^k·δ_{t+k} of one trajectory, term by term."""
    ahead = np.append(values[1:], 0.0)
    surprises = rewards + gamma * ahead - values
    return [sum((gamma * lam) ** k * s for k, s in enumerate(surprises[t:])) for t in range(len(values))]


@given(
    lengths=st.lists(st.integers(0, 5), max_size=5), seed=st.integers(0, 99), gamma=st.floats(0, 1), lam=st.floats(0, 1)
)
def test_every_trajectory_by_itself_equals_the_definition(
    lengths: list[int], seed: int, gamma: float, lam: float
) -> None:
    rng = np.random.default_rng(seed)
    sequence_M = np.repeat(np.arange(len(lengths)), lengths)
    rewards_M, values_M = rng.normal(size=(2, len(sequence_M)))
    advantages_M, returns_M = gae(rewards_M, values_M, sequence_M, gamma=gamma, gae_lambda=lam)
    for s in range(len(lengths)):
        own = sequence_M == s
        assert advantages_M[own].tolist() == pytest.approx(plain(rewards_M[own], values_M[own], gamma, lam))
    assert returns_M.tolist() == pytest.approx((advantages_M + values_M).tolist())
