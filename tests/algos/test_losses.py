"""The clipped objective: by hand, against finite differences, at the edges of floating point."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from astraflow.algos.losses import TokenSums, ppo_clip_loss

LOW, HIGH = 0.2, 0.28


def loss_of(
    current: list[float], behaviour: list[float], advantages: list[float], denominator: float | None = None
) -> tuple[torch.Tensor, torch.Tensor, TokenSums]:
    """Loss, its gradient and diagnostics, in float64."""
    current_N = torch.tensor(current, dtype=torch.float64, requires_grad=True)
    loss, sums = ppo_clip_loss(
        current_N,
        torch.tensor(behaviour, dtype=torch.float64),
        torch.tensor(advantages, dtype=torch.float64),
        clip_low=LOW,
        clip_high=HIGH,
        denominator=denominator or len(current),
    )
    loss.backward()
    assert current_N.grad is not None
    return loss.detach(), current_N.grad, sums


def test_equal_logprobs_give_the_plain_policy_gradient() -> None:
    loss, gradient, sums = loss_of([-1.0, -2.0], [-1.0, -2.0], [3.0, -1.0])
    assert float(loss) == -1.0  # −(3 − 1) / 2
    assert gradient.tolist() == [-1.5, 0.5]
    assert sums == TokenSums(tokens=2, ratio=2.0)


def test_clip_by_hand() -> None:
    # Ratios 1.5, 1.5, 0.5, 0.5: with A > 0 only the upper bound cuts, with A < 0 only the lower.
    up, down = math.log(1.5), math.log(0.5)
    loss, gradient, sums = loss_of([up, up, down, down], [0.0] * 4, [1.0, -1.0, 1.0, -1.0])
    assert float(loss) == pytest.approx(-(1.28 - 1.5 + 0.5 - 0.8) / 4)
    assert gradient.tolist() == pytest.approx([0.0, 1.5 / 4, -0.5 / 4, 0.0])
    assert sums.clipped == 2
    assert sums.ratio == pytest.approx(4.0)
    assert sums.mismatch == pytest.approx(2 * up - 2 * down)
    assert sums.mismatch_max == pytest.approx(-down)
    assert sums.kl == pytest.approx(2 * (0.5 - up) + 2 * (-0.5 - down))


@pytest.mark.parametrize("ratio", [1.27, 1.29])
def test_upper_bound_is_where_it_was_set(ratio: float) -> None:
    _, gradient, sums = loss_of([math.log(ratio)], [0.0], [1.0])
    assert (gradient.item() == 0.0) == (sums.clipped == 1) == (ratio > 1.28)


@pytest.mark.parametrize("gap", [700.0, -700.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_absurd_log_ratios_stay_finite(gap: float, advantage: float) -> None:
    current_N = torch.tensor([gap], requires_grad=True)  # float32: exp(700) would be inf
    loss, sums = ppo_clip_loss(
        current_N, torch.zeros(1), torch.tensor([advantage]), clip_low=LOW, clip_high=HIGH, denominator=1
    )
    loss.backward()
    assert current_N.grad is not None
    assert torch.isfinite(loss).item()
    assert torch.isfinite(current_N.grad).all()
    assert all(math.isfinite(value) for value in (sums.ratio, sums.kl, sums.mismatch))
    assert sums.mismatch_max == 700.0


def test_nan_is_not_hidden() -> None:
    loss, _, _ = loss_of([math.nan], [0.0], [1.0])
    assert math.isnan(float(loss))


tokens = st.tuples(st.floats(-3, 0), st.floats(-3, 0), st.floats(-2, 2))


@given(batch=st.lists(tokens, min_size=2, max_size=12), cut=st.integers(1, 11))
def test_any_split_into_micro_batches_gives_the_same_loss_and_gradient(batch: list, cut: int) -> None:
    whole, gradient, sums = loss_of(*map(list, zip(*batch, strict=True)))
    parts = [part for part in (batch[:cut], batch[cut:]) if part]
    pieces = [loss_of(*map(list, zip(*part, strict=True)), denominator=len(batch)) for part in parts]
    assert float(sum(loss for loss, _, _ in pieces)) == pytest.approx(float(whole), abs=1e-12)
    assert torch.cat([g for _, g, _ in pieces]).tolist() == pytest.approx(gradient.tolist(), abs=1e-12)
    added = sum((part for _, _, part in pieces), TokenSums())
    assert added.tokens == sums.tokens
    assert added.kl == pytest.approx(sums.kl, abs=1e-9)
    assert added.mismatch_max == sums.mismatch_max


@given(batch=st.lists(tokens, min_size=1, max_size=6))
def test_gradient_equals_finite_differences(batch: list) -> None:
    current, behaviour, advantages = map(list, zip(*batch, strict=True))
    _, gradient, _ = loss_of(current, behaviour, advantages)
    step = 1e-6
    for n in range(len(batch)):
        ratio = math.exp(current[n] - behaviour[n])
        if min(abs(ratio - (1 - LOW)), abs(ratio - (1 + HIGH))) < 1e-3:
            continue  # the objective has a corner there
        above, _, _ = loss_of([c + step * (i == n) for i, c in enumerate(current)], behaviour, advantages)
        below, _, _ = loss_of([c - step * (i == n) for i, c in enumerate(current)], behaviour, advantages)
        assert gradient[n].item() == pytest.approx(float(above - below) / (2 * step), rel=1e-4, abs=1e-6)


@given(batch=st.lists(tokens, min_size=1, max_size=12))
def test_kl_estimate_is_never_negative(batch: list) -> None:
    _, _, sums = loss_of(*map(list, zip(*batch, strict=True)))
    assert sums.kl >= 0.0
