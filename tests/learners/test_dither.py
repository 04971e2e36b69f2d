"""Dithering moves the master and nothing else, for every bf16 bit pattern."""

import pytest
import torch

from astraflow.learners.dither import dithered_master, on_bf16_grid

EVERY_BF16 = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("seed", range(20))
def test_every_bf16_value_rounds_back_bit_for_bit(seed: int) -> None:
    back = dithered_master(EVERY_BF16, generator(seed)).to(torch.bfloat16)
    number = ~EVERY_BF16.isnan()
    assert torch.equal(back[number].view(torch.int16), EVERY_BF16[number].view(torch.int16))
    assert back[~number].isnan().all()


def test_zeros_subnormals_and_infinities_are_left_alone() -> None:
    tiny = torch.tensor([0.0, -0.0, 1e-40, -1e-40, float("inf"), float("-inf")]).bfloat16()
    master = dithered_master(tiny, generator(0))
    assert torch.equal(master.view(torch.int32), tiny.float().view(torch.int32))


def test_masters_spread_over_their_cells() -> None:
    weights = torch.full((10_000,), 1.5, dtype=torch.bfloat16)
    spacing = 2.0**-7
    offset = (dithered_master(weights, generator(3)) - 1.5) / spacing
    assert offset.min() < -0.49
    assert offset.max() > 0.49
    assert abs(float(offset.mean())) < 0.01
    assert float(offset.std()) == pytest.approx(12**-0.5, rel=0.02)


def test_below_a_power_of_two_the_narrow_half_keeps_what_does_not_round_back() -> None:
    weights = torch.full((10_000,), 1.0, dtype=torch.bfloat16)
    offset = (dithered_master(weights, generator(4)) - 1.0) / 2.0**-7
    assert offset.min() >= -0.25
    assert float((offset == 0).float().mean()) == pytest.approx(0.25, abs=0.02)


def test_equal_seeds_give_equal_masters() -> None:
    weights = torch.randn(1000, generator=generator(5)).bfloat16()
    assert torch.equal(dithered_master(weights, generator(1)), dithered_master(weights, generator(1)))
    assert not torch.equal(dithered_master(weights, generator(1)), dithered_master(weights, generator(2)))


def test_small_updates_act_at_once_in_expectation() -> None:
    weights = torch.randn(100_000, generator=generator(6)).bfloat16()
    update = 1e-4
    moved = (dithered_master(weights, generator(7)) + update).to(torch.bfloat16).float() - weights.float()
    from_grid = (weights.float() + update).to(torch.bfloat16).float() - weights.float()
    assert float(moved.mean()) == pytest.approx(update, rel=0.2)
    assert abs(float(from_grid.mean())) < update / 5


def test_weights_that_were_cut_to_bf16_are_on_the_grid() -> None:
    full = torch.randn(100, generator=generator(8))
    assert not on_bf16_grid(full)
    assert on_bf16_grid(full.bfloat16())
    assert on_bf16_grid(full.bfloat16().float())
    assert not on_bf16_grid(full.half())
    assert on_bf16_grid(torch.tensor([0.5, -2.0]).half())
