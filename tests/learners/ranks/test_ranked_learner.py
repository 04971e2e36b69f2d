"""Ranks compute what one process computes: metrics and weights, whatever the loss, dtype and number of ranks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.learners.learner_cases import batch, model_folder, sample
from tests.learners.ranks.on_ranks import on_ranks
from tests.learners.ranks.ranked_cases import (
    VARIANTS,
    apart,
    settings,
    skip_on_ranks,
    train_alone,
    train_on,
    train_on_ranks,
    train_ranked,
)

SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model"), dtype=torch.bfloat16, tie_word_embeddings=True)


def check_alike(found: Any, wanted: Any, *, metrics: float, weights: float) -> None:
    for one, other in zip(found[0], wanted[0], strict=True):
        timeless = {name: value for name, value in other.items() if not name.endswith("_s")}
        assert {name: one[name] for name in timeless} == pytest.approx(timeless, rel=metrics, abs=1e-7)
    assert apart(found[1], wanted[1]) <= weights


@pytest.mark.parametrize("variant", VARIANTS)
def test_in_fp32_two_ranks_train_as_one_process_does(folder: Path, variant: str) -> None:
    one = settings(variant, "fp32")
    wanted = train_alone(folder, one, SEEDS)
    for found in on_ranks(2, train_ranked, folder, one, SEEDS):
        check_alike(found, wanted, metrics=5e-6, weights=2e-6)


@pytest.mark.parametrize(("size", "replicate"), [(1, 1), (4, 1), (4, 2)])
def test_so_do_one_and_four_ranks_and_two_copies_of_two(folder: Path, size: int, replicate: int) -> None:
    one = settings("default", "fp32")
    wanted = train_alone(folder, one, SEEDS)
    for found in on_ranks(size, train_ranked, folder, one, SEEDS, replicate):
        check_alike(found, wanted, metrics=5e-6, weights=2e-6)


def test_in_bf16_any_number_of_ranks_ends_at_the_same_weights(folder: Path) -> None:
    one = settings("default", "bf16")
    _, two = on_ranks(2, train_ranked, folder, one, SEEDS)[0]
    _, four = on_ranks(4, train_ranked, folder, one, SEEDS)[0]
    assert apart(four, two) <= 1e-9
    _, alone = train_alone(folder, one, SEEDS)
    assert apart(two, alone) <= 1e-5  # a layer's bf16 gradients round elsewhere than in one process


def test_in_bf16_ranks_start_from_the_masters_of_one_process(folder: Path) -> None:
    one = settings("default", "bf16")
    _, wanted = train_alone(folder, one, ())
    _, found = on_ranks(2, train_ranked, folder, one, ())[1]
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_one_sample_for_four_ranks_trains_as_on_one(folder: Path) -> None:
    one = settings("default", "fp32")
    wanted = train_on(folder, one, [[batch(0)[0]]])
    for found in on_ranks(4, train_on_ranks, folder, one, [[batch(0)[0]]]):
        check_alike(found, wanted, metrics=5e-6, weights=2e-6)


def test_a_rank_with_few_tokens_beside_one_with_many_weighs_no_more(folder: Path) -> None:
    rng = np.random.default_rng(0)
    short = sample([5, 6], [7, 8, 9], group="a")
    long = sample([5, 6], rng.integers(0, 60, 110).tolist(), group="b", advantage=-0.5)
    one = settings("default", "fp32")
    wanted = train_on(folder, one, [[short, long]])
    for found in on_ranks(2, train_on_ranks, folder, one, [[short, long]]):
        check_alike(found, wanted, metrics=5e-6, weights=2e-6)


def test_a_loss_that_is_not_finite_on_one_rank_is_skipped_by_all_and_changes_no_bit(folder: Path) -> None:
    one = settings("default", "fp32")
    for reasons, before, after in on_ranks(2, skip_on_ranks, folder, one):
        assert reasons == ["nan_gradient"] or reasons == ["nan_loss"]
        assert all(torch.equal(after[name], before[name]) for name in before)
