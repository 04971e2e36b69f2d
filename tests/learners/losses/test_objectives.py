"""Each objective by hand, at the edges of floating point, and against finite differences."""

import math
from collections.abc import Mapping
from types import FunctionType
from typing import Any

import pytest
import torch

from astraflow.config import LossSection
from astraflow.config.loss import OBJECTIVES
from astraflow.errors import ConfigError
from astraflow.learners.losses import objectives
from astraflow.learners.losses.presets import PRESETS
from tests.learners.losses.loss_cases import batch_of, value_of

UP, DOWN = math.log(1.5), math.log(0.5)
SIGNS = [1.0, -1.0, 1.0, -1.0]
RATIOS = [UP, UP, DOWN, DOWN]


def section(**keys: Any) -> LossSection:
    return LossSection(**{"clip_low": 0.2, "clip_high": 0.28} | keys)


def four(**keys: Any) -> tuple[float, list[float], Any]:
    """Ratios 1.5, 1.5, 0.5, 0.5 with advantages 1, −1, 1, −1; loss and gradient of their sum."""
    loss, gradient, sums = value_of(section(**keys), batch_of([0.0] * 4, SIGNS), RATIOS)
    return 4 * loss, [4 * each for each in gradient], sums


def test_the_run_file_names_every_objective_that_there_is() -> None:
    made_here = (thing for thing in vars(objectives).values() if isinstance(thing, FunctionType))
    assert {made.__name__ for made in made_here if made.__module__ == objectives.__name__} == set(OBJECTIVES)


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_on_policy_every_objective_has_the_plain_policy_gradient(name: str) -> None:
    loss, gradient, sums = value_of(section(objective=name, tau_negative=1.0), batch_of([-1, -2], [3, -1]), [-1, -2])
    assert gradient == pytest.approx([-1.5, 0.5])
    assert (sums.clipped, sums.ratio, sums.kl, sums.mismatch) == (0, 2, 0, 0)
    assert loss == pytest.approx({"logprob": 0.5, "cispo": 0.5, "sapo": -2.0}.get(name, -1.0))


def test_clip() -> None:
    # With A > 0 only the upper bound cuts, with A < 0 only the lower.
    loss, gradient, sums = four()
    assert loss == pytest.approx(-(1.28 - 1.5 + 0.5 - 0.8))
    assert gradient == pytest.approx([0, 1.5, -0.5, 0])
    assert (sums.clipped, sums.tokens, sums.ratio) == (2, 4, pytest.approx(4.0))
    assert (sums.mismatch, sums.mismatch_max) == (pytest.approx(2 * UP - 2 * DOWN), pytest.approx(-DOWN))
    assert sums.kl == pytest.approx(2 * (0.5 - UP) + 2 * (-0.5 - DOWN))
    assert sums.ratio_max == pytest.approx(1.5)
    assert sums.effective_fraction == pytest.approx(4.0**2 / (4 * (2 * 1.5**2 + 2 * 0.5**2)))


@pytest.mark.parametrize("ratio", [1.27, 1.29])
def test_upper_bound_is_where_it_was_set(ratio: float) -> None:
    _, gradient, sums = value_of(section(), batch_of([0.0], [1.0]), [math.log(ratio)])
    assert (gradient[0] == 0.0) == (sums.clipped == 1) == (ratio > 1.28)


def test_dual_clip_bounds_what_a_bad_token_can_do() -> None:
    loss, gradient, sums = value_of(
        section(dual_clip=3.0), batch_of([0.0] * 3, [-1.0, -2.0, 1.0]), [math.log(2), math.log(4), math.log(4)]
    )
    assert 3 * loss == pytest.approx(2.0 + 2 * 3.0 - 1.28)
    assert [3 * each for each in gradient] == pytest.approx([2.0, 0, 0])
    assert sums.clipped == 2


def test_ratio_has_no_bounds() -> None:
    loss, gradient, sums = four(objective="ratio")
    assert loss == pytest.approx(-(1.5 - 1.5 + 0.5 - 0.5))
    assert gradient == pytest.approx([-1.5, 1.5, -0.5, 0.5])
    assert sums.clipped == 0


def test_cispo_bounds_the_weight_and_keeps_every_gradient() -> None:
    loss, gradient, sums = four(objective="cispo")
    assert gradient == pytest.approx([-1.28, 1.28, -0.8, 0.8])
    assert loss == pytest.approx(-(1.28 * UP - 1.28 * UP + 0.8 * DOWN - 0.8 * DOWN))
    assert sums.clipped == 4


def test_sapo_gates_softly() -> None:
    loss, gradient, _ = four(objective="sapo", tau_positive=1.0, tau_negative=2.0)

    def gate(ratio: float, tau: float) -> float:
        return 4 / tau / (1 + math.exp(-tau * (ratio - 1)))

    assert loss == pytest.approx(-(gate(1.5, 1) - gate(1.5, 2) + gate(0.5, 1) - gate(0.5, 2)))
    # The published weight of a token's gradient: 4 σ (1 − σ) ρ.
    share = 1 / (1 + math.exp(-0.5))
    assert gradient[0] == pytest.approx(-4 * share * (1 - share) * 1.5)


def test_gspo_clips_whole_sequences_by_their_geometric_mean() -> None:
    # Two sequences of two tokens: mean log ratios 0.1 and −0.1; low = high = 0.05.
    current = [0.3, -0.1, -0.4, 0.2]
    sequences = batch_of([0.0] * 4, [1.0, 1.0, 1.0, 1.0], lengths=[2, 2])
    gspo = section(ratio="sequence", clip_low=0.05, clip_high=0.05, aggregation="sequence-mean")
    loss, gradient, sums = value_of(gspo, sequences, current)
    assert loss == pytest.approx(-(1.05 + math.exp(-0.1)) / 2)
    assert gradient == pytest.approx([0, 0, -math.exp(-0.1) / 4, -math.exp(-0.1) / 4])
    assert sums.clipped == 2


# The value of a bounded objective at ratio → ∞ and → 0, for A = 1 and A = −1; None: grows, but finitely.
LIMITS: Mapping[str, tuple[float | None, ...]] = {
    "clip": (1.28, None, 0.0, -0.8),
    "ratio": (None, None, 0.0, 0.0),
    "logprob": (None, None, None, None),
    "cispo": (None, None, None, None),
    "sapo": (4.0, -4 / 1.05, 4 / (1 + math.e), -4 / 1.05 / (1 + math.exp(1.05))),
}


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_absurd_log_ratios_stay_finite_and_reach_the_right_limit(name: str, level: str) -> None:
    for case, (gap, advantage) in enumerate([(700.0, 1.0), (700.0, -1.0), (-700.0, 1.0), (-700.0, -1.0)]):
        loss, gradient, sums = value_of(section(objective=name, ratio=level), batch_of([0.0], [advantage]), [gap])
        assert math.isfinite(loss)
        assert math.isfinite(gradient[0])
        assert all(math.isfinite(each) for each in (sums.ratio, sums.kl, sums.ratio_square, sums.second_moment))
        assert sums.mismatch_max == 700.0
        limit = LIMITS[name][case]
        if limit is not None:
            assert -loss == pytest.approx(limit, abs=1e-8)
            assert gradient[0] == pytest.approx(0.0, abs=1e-8)


def test_absurd_log_ratios_are_finite_in_fp32_too() -> None:
    for name in OBJECTIVES:
        case = batch_of([0.0, 0.0], [1.0, -1.0])
        single = type(case)(
            behaviour_M=case.behaviour_M.float(),
            advantages_M=case.advantages_M.float(),
            sequence_M=case.sequence_M,
            task_S=case.task_S,
        )
        for gap in (700.0, -700.0):
            loss, gradient, sums = value_of(section(objective=name), single, [gap, gap])
            assert math.isfinite(loss)
            assert all(map(math.isfinite, gradient))
            assert math.isfinite(sums.ratio_square)


def test_nan_is_not_hidden() -> None:
    for name in OBJECTIVES:
        assert math.isnan(value_of(section(objective=name), batch_of([0.0], [1.0]), [math.nan])[0]), name


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_gradient_of_every_preset_equals_finite_differences(preset: str) -> None:
    torch.manual_seed(hash_of(preset))
    loss = LossSection(**{"aggregation_constant": 7, "entropy_bonus": 0.0} | dict(PRESETS[preset].loss))
    count, lengths = 12, [3, 1, 4, 2, 2]
    behaviour, proximal, reference = ((torch.rand(count) * -2).tolist() for _ in range(3))
    current = [
        each + 0.2 * float(torch.randn(())) for each in (behaviour if loss.proximal == "behaviour" else proximal)
    ]
    advantages = torch.randn(5).repeat_interleave(torch.tensor(lengths)).tolist()
    if loss.ratio == "sequence":  # wide enough that something is inside
        loss = LossSection(
            **{f: getattr(loss, f) for f in loss.__struct_fields__} | {"clip_low": 0.1, "clip_high": 0.1}
        )
    case = batch_of(
        behaviour,
        advantages,
        lengths=lengths,
        reference=reference if loss.kl else None,
        proximal=proximal if loss.proximal == "recompute" else None,
    )
    _, gradient, _ = value_of(loss, case, current)
    assert any(gradient)
    step = 1e-6
    for n in range(count):
        if loss.objective == "cispo":  # its weight is a constant by definition
            ratio = math.exp(current[n] - behaviour[n])
            assert gradient[n] == pytest.approx(-min(ratio, 5.0) * advantages[n] / count)
            continue
        above, below = (
            value_of(loss, case, [c + sign * step * (i == n) for i, c in enumerate(current)], first=current)[0]
            for sign in (1, -1)
        )
        assert gradient[n] == pytest.approx((above - below) / (2 * step), rel=1e-4, abs=1e-7), n


def hash_of(name: str) -> int:
    return sum(map(ord, name))


def square(tokens: Any, scale: float = 1.0) -> torch.Tensor:
    """A loss of the user's own."""
    return scale * tokens.current_N.square() * tokens.advantages_N


def one_number(tokens: Any) -> torch.Tensor:
    return tokens.current_N.sum()


def test_a_loss_of_the_users_own() -> None:
    own = LossSection(objective=f"{__name__}:square", args={"scale": 2.0})
    loss, gradient, _ = value_of(own, batch_of([0.0, 0.0], [1.0, -1.0]), [3.0, 1.0])
    assert loss == pytest.approx(2 * (9 - 1) / 2)
    assert gradient == pytest.approx([6.0, -2.0])


def test_a_loss_of_the_users_own_that_is_none_is_named() -> None:
    case = batch_of([0.0, 0.0], [1.0, -1.0])
    with pytest.raises(ConfigError, match=r"returned \(\), expected the loss of each of the 2 tokens"):
        value_of(LossSection(objective=f"{__name__}:one_number"), case, [3.0, 1.0])
    with pytest.raises(ConfigError, match="has no 'squre'; did you mean 'square'"):
        value_of(LossSection(objective=f"{__name__}:squre"), case, [3.0, 1.0])
    with pytest.raises(ConfigError, match="is a float, expected a function"):
        value_of(LossSection(objective=f"{__name__}:UP"), case, [3.0, 1.0])
