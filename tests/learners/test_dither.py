"""Dithering moves the master and nothing else, for every bf16 bit pattern."""

import pytest
import torch

from astraflow.learners.dither import dithered_master, on_bf16_grid

EVERY_BF16 = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("seed", range(20))
def test_every_bf16_value_rounds_back_bit_for_bit(seed: int) -> None:
    back = dithered_master(EVERY_BF16, seed=seed, name="w").to(torch.bfloat16)
    number = ~EVERY_BF16.isnan()
    assert torch.equal(back[number].view(torch.int16), EVERY_BF16[number].view(torch.int16))
    assert back[~number].isnan().all()


def test_zeros_subnormals_and_infinities_are_left_alone() -> None:
    tiny = torch.tensor([0.0, -0.0, 1e-40, -1e-40, float("inf"), float("-inf")]).bfloat16()
    master = dithered_master(tiny, seed=0, name="w")
    assert torch.equal(master.view(torch.int32), tiny.float().view(torch.int32))


def test_masters_spread_over_their_cells() -> None:
    weights = torch.full((10_000,), 1.5, dtype=torch.bfloat16)
    spacing = 2.0**-7
    offset = (dithered_master(weights, seed=3, name="w") - 1.5) / spacing
    assert offset.min() < -0.49
    assert offset.max() > 0.49
    assert abs(float(offset.mean())) < 0.01
    assert float(offset.std()) == pytest.approx(12**-0.5, rel=0.02)


def test_below_a_power_of_two_the_narrow_half_keeps_what_does_not_round_back() -> None:
    weights = torch.full((10_000,), 1.0, dtype=torch.bfloat16)
    offset = (dithered_master(weights, seed=4, name="w") - 1.0) / 2.0**-7
    assert offset.min() >= -0.25
    assert float((offset == 0).float().mean()) == pytest.approx(0.25, abs=0.02)


def test_equal_seeds_give_equal_masters() -> None:
    weights = torch.randn(1000, generator=generator(5)).bfloat16()
    assert torch.equal(dithered_master(weights, seed=1, name="w"), dithered_master(weights, seed=1, name="w"))
    assert not torch.equal(dithered_master(weights, seed=1, name="w"), dithered_master(weights, seed=2, name="w"))


def test_small_updates_act_at_once_in_expectation() -> None:
    weights = torch.randn(100_000, generator=generator(6)).bfloat16()
    update = 1e-4
    moved = (dithered_master(weights, seed=7, name="w") + update).to(torch.bfloat16).float() - weights.float()
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


def test_where_an_element_starts_depends_on_its_tensor_and_place_and_not_on_how_the_tensor_is_cut() -> None:
    weights = torch.randn(24, 20, generator=generator(9)).bfloat16()
    whole = dithered_master(weights, seed=1, name="w")
    rows = dithered_master(weights[5:11], seed=1, name="w", elements=lambda a, b: torch.arange(a, b) + 5 * 20)
    assert torch.equal(rows, whole[5:11])
    index = torch.arange(24 * 20).view(24, 20)[:, 7:12].reshape(-1)
    columns = dithered_master(weights[:, 7:12], seed=1, name="w", elements=lambda a, b: index[a:b])
    assert torch.equal(columns, whole[:, 7:12])
    assert not torch.equal(dithered_master(weights, seed=1, name="v"), whole)


def test_offsets_are_uniform_and_neighbours_know_nothing_of_each_other() -> None:
    weights = torch.full((1 << 20,), 1.5, dtype=torch.bfloat16)
    offset = (dithered_master(weights, seed=0, name="w") - 1.5) * 2.0**7 + 0.5
    counts = torch.histc(offset, bins=1024, min=0.0, max=1.0)
    chi_square = float(((counts - 1024) ** 2 / 1024).sum())
    assert abs(chi_square - 1023) < 4 * (2 * 1023) ** 0.5
    other = (dithered_master(weights, seed=1, name="w") - 1.5) * 2.0**7 + 0.5
    for one, another in ((offset[:-1], offset[1:]), (offset[:-1024], offset[1024:]), (offset, other)):
        assert abs(float(torch.corrcoef(torch.stack([one, another]))[0, 1])) < 4e-3
