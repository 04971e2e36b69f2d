"""The norm of gradients, exact where torch's own is not."""

import math

import pytest
import torch

from astraflow.learners.master import MasterWeights
from astraflow.learners.norms import gradient_norm, scale
from astraflow.learners.team import Alone
from tests.learners.learner_cases import section


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


def test_many_small_gradients_are_added_in_fp32() -> None:
    model = torch.nn.Linear(1, 1, bias=False).bfloat16()
    masters = MasterWeights(model, section(), dtype=torch.bfloat16, dither_seed=None, team=Alone())
    for gradient in (1.0, *(300 * [2.0**-9])):  # in bf16 1 + 2⁻⁹ is 1
        model.weight.backward(torch.full((1, 1), gradient, dtype=torch.bfloat16))
    assert masters.gradient_norm() == pytest.approx(1 + 300 / 512, abs=1e-6)
