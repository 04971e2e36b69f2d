"""Masks, off-policy weights, regularisers and aggregation by hand; any split of an update gives the same result."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.config import LossSection
from astraflow.learners.losses.aggregation import sample_weights
from astraflow.learners.losses.compose import Loss
from astraflow.learners.losses.correction import correction_weights
from astraflow.learners.losses.presets import PRESETS
from astraflow.learners.losses.regularisers import kl_estimate, kl_to_go, normalised
from astraflow.learners.losses.trust import second_moment_mask
from tests.learners.losses.loss_cases import batch_of, numbers, value_of


def mask_of(log_ratios: list[float], advantages: list[float], threshold: float) -> list[bool]:
    return second_moment_mask(numbers(log_ratios), numbers(advantages), threshold=threshold).tolist()


def test_m2po_masks_the_largest_until_the_rest_is_within_bounds() -> None:
    # All outward. Squares 0.01, 0.04, 0.09, 0.16: means of the smallest are 0.01, 0.025, 0.0467, 0.075.
    outward = [0.3, 0.1, 0.4, 0.2]
    assert mask_of(outward, [1.0] * 4, 0.08) == [True] * 4
    assert mask_of(outward, [1.0] * 4, 0.05) == [True, True, False, True]
    assert mask_of(outward, [1.0] * 4, 0.03) == [False, True, False, True]
    assert mask_of(outward, [1.0] * 4, 0.01 + 1e-12) == [False, True, False, False]
    assert mask_of(outward, [1.0] * 4, 0.001) == [False] * 4


def test_m2po_never_masks_tokens_that_come_back() -> None:
    # Ratio above 1 with A < 0, below 1 with A > 0, or A = 0: they move towards the behaviour policy, or nowhere.
    assert mask_of([3.0, -3.0, 3.0, 3.0, -3.0], [-1.0, 1.0, 0.0, 1.0, -1.0], 0.01) == [True, True, True, False, False]
    # Inward tokens don't dilute the mean either.
    assert mask_of([0.2, -3.0, -0.0], [1.0, 1.0, 1.0], 0.03) == [False, True, True]


def test_m2po_keeps_a_mean_that_is_exactly_the_threshold() -> None:
    assert mask_of([0.5, 0.75], [1.0, 1.0], 0.25) == [True, False]


def test_m2po_looks_at_the_tokens_of_its_own_update_only() -> None:
    # Alone: squares 0.01 and 0.09, means 0.01 and 0.05. With the other update's 0.0001 the mean would be 0.0334.
    loss = Loss(LossSection(objective="ratio", m2_threshold=0.04))
    prepared = loss.prepare(batch_of([0.0] * 3, [1.0] * 3))
    chosen_S, current_M = torch.tensor([True, True, False]), numbers([0.1, 0.3, 0.01])
    weights = loss.weigh(prepared, chosen_S=chosen_S, current_M=current_M)
    assert weights.objective_M.tolist()[:2] == [1.0, 0.0]


def test_tokens_without_advantage_count_wherever_something_else_looks_at_them() -> None:
    assert Loss(LossSection()).only_advantages
    assert not Loss(LossSection(normalise="batch")).only_advantages
    assert not Loss(LossSection(normalise="task")).only_advantages
    assert not Loss(LossSection(entropy_bonus=0.1)).only_advantages


def test_m2po_of_nothing_and_of_absurd_ratios() -> None:
    assert mask_of([], [], 0.01) == []
    assert mask_of([700.0, 0.01], [1.0, 1.0], 0.01) == [False, True]


def test_m2po_loss_by_hand() -> None:
    m2po = LossSection(objective="ratio", m2_threshold=0.01)
    loss, gradient, sums = value_of(m2po, batch_of([0.0] * 3, [1.0, 1.0, -1.0]), [0.05, 0.5, 0.5])
    kept = -math.exp(0.05) / 3, 0.0, math.exp(0.5) / 3  # masked tokens stay in the denominator
    assert gradient == pytest.approx(kept)
    assert loss == pytest.approx(sum(kept))
    assert sums.masked == 1


def weights_of(proximal: list[float], behaviour: list[float], sequences: list[int], **keys: Any) -> list[float]:
    keys = {"kind": "truncate", "level": "token", "cap": 2.0, "floor": 0.5} | keys
    return correction_weights(numbers(proximal), numbers(behaviour), torch.tensor(sequences), **keys).tolist()


def test_off_policy_weights_by_hand() -> None:
    ratios = [1.5, 3.0, 0.4, 1.25]
    proximal, sequences = [math.log(ratio) for ratio in ratios], [0, 0, 1, 1]
    assert weights_of(proximal, [0.0] * 4, sequences) == pytest.approx([1.5, 2.0, 0.4, 1.25])
    assert weights_of(proximal, [0.0] * 4, sequences, kind="mask") == pytest.approx([1.5, 0.0, 0.0, 1.25])
    # Products 4.5 and 0.5.
    assert weights_of(proximal, [0.0] * 4, sequences, level="sequence") == pytest.approx([2.0, 2.0, 0.5, 0.5])
    masked = weights_of(proximal, [0.0] * 4, sequences, level="sequence", kind="mask", floor=0.4)
    assert masked == pytest.approx([0.0, 0.0, 0.5, 0.5])


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_off_policy_weights_of_absurd_ratios(level: str) -> None:
    truncated = weights_of([0.0, -700.0, 0.0], [-700.0, 0.0, 0.0], [0, 1, 2], level=level)
    assert truncated == pytest.approx([2.0, 0.0, 1.0], abs=1e-8)
    assert weights_of([0.0, -700.0], [-700.0, 0.0], [0, 1], level=level, kind="mask") == [0.0, 0.0]


def test_decoupled_ppo_keeps_three_policies_apart() -> None:
    # w = proximal / behaviour, clipped ratio = current / proximal.
    decoupled = LossSection(
        proximal="recompute", correction="truncate", correction_cap=1.2, clip_low=0.2, clip_high=0.2
    )
    proximal = [math.log(1.1), math.log(1.5), math.log(0.5)]
    case = batch_of([0.0] * 3, [1.0, 1.0, -1.0], proximal=proximal)
    current = [proximal[0] + math.log(1.1), proximal[1] + math.log(1.3), proximal[2] + math.log(0.9)]
    loss, gradient, sums = value_of(decoupled, case, current)
    assert loss == pytest.approx(-(1.1 * 1.1 + 1.2 * 1.2 - 0.5 * 0.9) / 3)
    assert gradient == pytest.approx([-1.1 * 1.1 / 3, 0.0, 0.5 * 0.9 / 3])
    assert sums.ratio == pytest.approx(1.1 * 1.1 + 1.5 * 1.3 + 0.5 * 0.9), "of current over behaviour"


def test_kl_estimators_by_hand_and_at_the_edges() -> None:
    policy, reference = numbers([math.log(0.5), -1.0]), numbers([math.log(0.25), -1.0])
    r = math.log(2)
    assert kl_estimate(policy, reference, "k1").tolist() == pytest.approx([r, 0])
    assert kl_estimate(policy, reference, "k2").tolist() == pytest.approx([r * r / 2, 0])
    assert kl_estimate(policy, reference, "k3").tolist() == pytest.approx([0.5 - 1 + r, 0])
    assert kl_estimate(numbers([700.0]), numbers([0.0]), "k3").tolist() == pytest.approx([699.0])
    for estimator in ("k1", "k2", "k3"):
        assert kl_estimate(numbers([-700.0]), numbers([0.0]), estimator).isfinite().all()


def test_kl_in_the_loss_moves_tokens_without_advantage_too() -> None:
    with_kl = LossSection(kl=0.5, kl_estimator="k2")
    loss, gradient, sums = value_of(with_kl, batch_of([-1.0, -1.0], [0.0, 1.0], reference=[-3.0, -1.0]), [-1.0, -1.0])
    assert loss == pytest.approx((0.5 * 2.0 - 1.0) / 2)
    assert gradient == pytest.approx([0.5 * 2.0 / 2, -1.0 / 2])
    assert sums.reference_kl == pytest.approx(math.exp(-2) - 1 + 2)


def test_kl_in_the_reward_is_taken_from_the_tokens_before_it() -> None:
    assert kl_to_go(numbers([1, 2, 3, 10, 20]), torch.tensor([0, 0, 0, 2, 2])).tolist() == [6, 5, 3, 30, 20]
    in_reward = LossSection(kl=0.1, kl_estimator="k1", kl_in="reward", objective="logprob")
    case = batch_of([-1.0, -1.0], [1.0, 1.0], lengths=[2], reference=[-2.0, -4.0])  # k1 = 1 and 3
    _, gradient, _ = value_of(in_reward, case, [-1.0, -1.0])
    assert gradient == pytest.approx([-(1 - 0.1 * 4) / 2, -(1 - 0.1 * 3) / 2])


def test_kl_in_the_loss_is_not_multiplied_by_the_off_policy_weights() -> None:
    one = {"reference": [-1.0, -2.0], "proximal": [-0.5, -0.5]}
    batch = batch_of([-3.0, 0.0], [0.0, 0.0], **one)
    keys = {"objective": "ratio", "proximal": "recompute", "kl": 0.5, "kl_in": "loss", "kl_estimator": "k3"}
    plain = LossSection(**keys)
    weighted = LossSection(**keys, correction="truncate", correction_level="token", correction_cap=1.5)
    _, expected, _ = value_of(plain, batch, [-0.4, -0.7])
    assert all(expected)
    assert value_of(weighted, batch, [-0.4, -0.7])[1] == pytest.approx(expected, abs=1e-15)


def test_entropy_bonus_is_taken_off_the_loss() -> None:
    case = batch_of([0.0, 0.0], [0.0, 0.0])
    loss, _, sums = value_of(LossSection(entropy_bonus=0.1), case, [0.0, 0.0], entropy=[2.0, 4.0])
    assert (loss, sums.token_entropy) == (pytest.approx(-0.3), 6.0)


def test_advantages_are_normalised_over_tokens_of_the_batch_or_of_each_task() -> None:
    # Tokens 1, 1, 3 | 10, 30: over each kind mean 5/3 and 20, deviations √(4/3) and √200.
    case = batch_of([0.0] * 5, [1.0, 1.0, 3.0, 10.0, 30.0], lengths=[2, 1, 1, 1], tasks=[0, 0, 1, 1])
    kinds_M = case.task_S[case.sequence_M]
    a, b = math.sqrt(4 / 3), math.sqrt(200)
    expected = [-2 / 3 / a, -2 / 3 / a, 4 / 3 / a, -10 / b, 10 / b]
    assert normalised(case.advantages_M, kinds_M).tolist() == pytest.approx(expected, abs=1e-6)
    whole = normalised(case.advantages_M, torch.zeros(5, dtype=torch.int64))
    assert float(whole.mean()) == pytest.approx(0.0, abs=1e-9)
    assert float(whole.std()) == pytest.approx(1.0, abs=1e-6)
    _, gradient, _ = value_of(LossSection(normalise="task", objective="logprob"), case, [0.0] * 5)
    assert gradient == pytest.approx([-each / 5 for each in expected], abs=1e-6)
    assert normalised(numbers([0.1, 0.1, 0.1]), torch.zeros(3, dtype=torch.int64)).tolist() == [0, 0, 0]
    assert normalised(numbers([5.0]), torch.zeros(1, dtype=torch.int64)).tolist() == [0]


def test_aggregation_by_hand() -> None:
    lengths = torch.tensor([3, 1, 0])

    def weights(kind: Any) -> list[float]:
        return sample_weights(lengths, kind=kind, constant=10).tolist()

    assert weights("token-mean")[:2] == [0.25, 0.25]
    assert weights("sequence-mean")[:2] == pytest.approx([1 / 6, 1 / 2])
    assert weights("constant")[:2] == pytest.approx([1 / 20, 1 / 20])
    assert sample_weights(torch.tensor([0, 0]), kind="token-mean", constant=1).isfinite().all()


def test_samples_of_other_updates_count_nowhere() -> None:
    from astraflow.learners.losses.compose import Loss

    loss = Loss(LossSection(aggregation="sequence-mean"))
    prepared = loss.prepare(batch_of([0.0] * 6, [1.0] * 6, lengths=[3, 1, 2]))
    weights = loss.weigh(prepared, chosen_S=torch.tensor([True, False, True]))
    assert weights.token_M.tolist() == pytest.approx([1 / 6] * 3 + [0] + [1 / 4] * 2)


tokens = st.tuples(st.floats(-3, 0), st.floats(-3, 0), st.floats(-3, 0), st.floats(-3, 0))


@pytest.mark.parametrize("preset", sorted(PRESETS))
@settings(max_examples=5)
@given(
    samples=st.lists(st.tuples(st.floats(-2, 2), st.lists(tokens, min_size=1, max_size=4)), min_size=2, max_size=5),
    data=st.data(),
)
def test_any_split_into_micro_batches_gives_the_same_loss_and_gradient(
    preset: str, samples: list[Any], data: st.DataObject
) -> None:
    loss = LossSection(**{"aggregation_constant": 5} | dict(PRESETS[preset].loss))
    flat = [token for _, members in samples for token in members]
    behaviour, proximal, reference, current = map(list, zip(*flat, strict=True))
    lengths = [len(members) for _, members in samples]
    case = batch_of(
        behaviour,
        [advantage for advantage, members in samples for _ in members],
        lengths=lengths,
        proximal=proximal if loss.proximal == "recompute" else None,
        reference=reference if loss.kl else None,
    )
    starts = [sum(lengths[:s]) for s in range(len(lengths))]
    places = [list(range(start, start + length)) for start, length in zip(starts, lengths, strict=True)]
    cut = data.draw(st.integers(1, len(places) - 1))
    order = data.draw(st.permutations(places))
    split = [[n for sample in part for n in sample] for part in (order[:cut], order[cut:])]
    whole, gradient, sums = value_of(loss, case, current)
    pieces, piecewise, added = value_of(loss, case, current, micro_batches=split)
    assert pieces == pytest.approx(whole, abs=1e-9)
    assert piecewise == pytest.approx(gradient, abs=1e-12)
    assert (added.tokens, added.clipped, added.masked) == (sums.tokens, sums.clipped, sums.masked)
    assert (added.mismatch_max, added.ratio_max) == (sums.mismatch_max, sums.ratio_max)
    assert added.kl == pytest.approx(sums.kl, abs=1e-9)
    assert sums.kl >= 0.0
