"""A critic's loss by hand and by finite differences, and what a batch with values is prepared to."""

from dataclasses import replace

import msgspec
import pytest
import torch

from astraflow.config import CriticSection, LossSection
from astraflow.learners.losses.compose import Loss
from astraflow.learners.losses.values import explained_variance, value_losses
from tests.learners.losses.loss_cases import batch_of, numbers


def test_values_are_clipped_where_they_ran_ahead_to_their_returns() -> None:
    old, returns = numbers([0.0, 0.0, 0.0, 0.0]), numbers([1.0, 1.0, 1.0, -1.0])
    values = numbers([0.1, 0.5, -0.5, -0.5]).requires_grad_()
    losses = value_losses(values, old, returns, clip=0.2)
    assert losses.tolist() == pytest.approx([0.9**2 / 2, 0.8**2 / 2, 1.5**2 / 2, 0.8**2 / 2])
    losses.sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == pytest.approx([-0.9, 0, -1.5, 0])
    assert value_losses(values, old, returns, clip=0).tolist() == pytest.approx([0.405, 0.125, 1.125, 0.125])


def test_gradient_equals_finite_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    values, old, returns = torch.randn(3, 40, generator=generator, dtype=torch.float64)
    values.requires_grad_()
    assert torch.autograd.gradcheck(lambda v: value_losses(v, old, returns, clip=0.3), (values,))


def test_explained_variance() -> None:
    returns = numbers([1.0, 2.0, 3.0])
    assert explained_variance(returns, returns) == 1
    assert explained_variance(numbers([7.0, 7.0, 7.0]), returns) == pytest.approx(0)
    assert explained_variance(-returns, returns) == pytest.approx(-3)
    assert explained_variance(returns, numbers([2.0, 2.0, 2.0])) is None
    assert explained_variance(numbers([]), numbers([])) is None


def test_advantages_and_returns_of_a_batch_come_from_rewards_values_and_kl() -> None:
    """Two samples with rewards 8 and −2; the KL of each token, k1 = 1, 0, 2, 0, 0, is taken off where it arises."""
    critic = CriticSection(gamma=1.0, gae_lambda=1.0)
    section = LossSection(kl=0.5, kl_estimator="k1", kl_in="reward")
    case = batch_of([-1.0] * 5, [8.0, 8.0, 8.0, -2.0, -2.0], lengths=[3, 2], reference=[-2.0, -1.0, -3.0, -1.0, -1.0])
    with_values = replace(case, values_M=numbers([1.0, 2.0, 3.0, 4.0, 5.0]))
    prepared = Loss(section, critic).prepare(with_values)
    assert prepared.returns_M is not None
    assert prepared.returns_M.tolist() == [6.5, 7, 7, -2, -2]
    assert prepared.advantages_M.tolist() == [5.5, 5, 4, -6, -7]
    short = Loss(section, msgspec.structs.replace(critic, gae_lambda=0.0)).prepare(with_values)
    assert short.advantages_M.tolist() == [2 - 1 - 0.5, 1, 8 - 1 - 3, 1, -7]
    plain = Loss(section).prepare(case)
    assert plain.returns_M is None
    assert plain.advantages_M.tolist() == [6.5, 7, 7, -2, -2]


def test_a_value_loss_is_a_mean_over_the_updates_tokens_whatever_the_split() -> None:
    case = replace(batch_of([0.0] * 4, [1.0] * 4, lengths=[1, 2, 1]), values_M=numbers([0.0] * 4))
    loss = Loss(LossSection(), CriticSection(gae_lambda=1.0, value_clip=0.0))
    prepared = loss.prepare(case)
    weights = loss.weigh(prepared, chosen_S=torch.tensor([True, True, False]))
    values = numbers([0.0, 1.0, 3.0])
    parts = [loss.value_loss(prepared, weights, torch.tensor(order), values[order]) for order in ([0, 1], [2])]
    assert float(sum(parts)) == pytest.approx((1 + 0 + 4) / 2 / 3)
