"""The norm of gradients, exact where torch's own is not."""

import math

import pytest
import torch

from astraflow.learners.norms import gradient_norm, scale
from astraflow.learners.team import Alone


@pytest.mark.parametrize("shape", [(1,), (65_535,), (65_537,), (1 << 12, 1 << 10), (3, 0)])
def test_the_norm_is_that_of_float64(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    one, other = torch.randn(shape, generator=generator), torch.randn(7, generator=generator)
    exact = math.sqrt(float(one.double().square().sum() + other.double().square().sum()))
    assert gradient_norm([one, other], Alone()) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_one_element_that_is_not_finite_shows(value: float) -> None:
    assert not math.isfinite(gradient_norm([torch.ones(9), torch.tensor([0.0, value])], Alone()))


def test_no_gradients_have_no_norm_and_nothing_is_scaled() -> None:
    scale([], 0.5)
    assert gradient_norm([], Alone()) == 0.0
