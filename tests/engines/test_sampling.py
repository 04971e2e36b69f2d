"""Sampling: distributions, masks, logprobs and independence of neighbours."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.engines.keyed import keyed_bits, keyed_uniform
from astraflow.engines.sampling import Draw, kept_tokens, sample
from astraflow.messages import Sampling
from astraflow.messages.mixing import GOLDEN


def draws(count: int, seed: int = 0, **sampling: object) -> list[Draw]:
    return [Draw(Sampling(**sampling), seed, position) for position in range(count)]  # type: ignore[arg-type]


def logits_of(probabilities: list[float]) -> torch.Tensor:
    return torch.tensor(probabilities).log()


@pytest.mark.parametrize("vocabulary", [5, 256, 300, 1000])
@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.6])
def test_frequencies_follow_the_tempered_softmax(vocabulary: int, temperature: float) -> None:
    torch.manual_seed(vocabulary)
    logits = 2 * torch.randn(vocabulary)
    want = torch.softmax(logits / temperature, -1).numpy()
    count = 20_000
    tokens, _ = sample(logits.expand(count, -1), draws(count, seed=3, temperature=temperature))
    got = np.bincount(tokens, minlength=vocabulary) / count
    expected_noise = np.sqrt(want * (1 - want) / count).sum() * math.sqrt(2 / math.pi) / 2
    assert np.abs(got - want).sum() / 2 < 1.5 * expected_noise + 1e-3


def test_positions_and_seeds_give_uniform_uncorrelated_numbers() -> None:
    seeds, positions = np.meshgrid(np.arange(200, dtype=np.uint64), np.arange(200, dtype=np.int64))
    numbers = keyed_uniform(seeds.ravel(), positions.ravel()).reshape(200, 200)
    assert abs(numbers.mean() - 0.5) < 0.01
    assert len(np.unique(numbers)) == numbers.size
    for a, b in ((numbers[:-1], numbers[1:]), (numbers[:, :-1], numbers[:, 1:])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.02


def test_logprobs_are_of_the_tempered_distribution_before_filters() -> None:
    torch.manual_seed(0)
    logits = torch.randn(4, 50)
    settings_ = [
        Sampling(temperature=0.5),
        Sampling(temperature=2.0, top_k=3),
        Sampling(top_p=0.3),
        Sampling(temperature=0.0),
    ]
    tokens, logprobs = sample(logits, [Draw(item, 1, 2) for item in settings_])
    for row, item in enumerate(settings_):
        want = torch.log_softmax(logits[row] / (item.temperature or 1.0), -1)[tokens[row]]
        assert logprobs[row] == pytest.approx(float(want), abs=1e-5)
    assert tokens[3] == int(logits[3].argmax())


def test_greedy_takes_the_first_of_equals() -> None:
    tokens, logprobs = sample(torch.tensor([[1.0, 3.0, 3.0, 0.0]]), draws(1, temperature=0.0))
    assert tokens == [1]
    assert logprobs[0] == pytest.approx(3 - math.log(math.e + 2 * math.e**3 + 1))


def test_greedy_is_greedy_whatever_the_filters() -> None:
    logits = torch.tensor([1.0, 1.3, 1.2, 0.9])
    for filters in ({"top_k": 3}, {"top_p": 0.9}, {"top_k": 3, "top_p": 0.9}):
        tokens, _ = sample(logits.expand(200, -1), draws(200, temperature=0.0, **filters))
        assert set(tokens) == {1}


def test_neighbouring_seeds_are_no_shifted_copies_of_each_other() -> None:
    positions = np.arange(1000, dtype=np.int64)
    for step in (1, int(GOLDEN), 2 * int(GOLDEN), -int(GOLDEN)):
        one, other = keyed_bits(7, positions), keyed_bits(7 + step, positions)
        assert not np.intersect1d(one, other).size


def test_every_bit_of_seed_and_position_changes_half_of_the_bits() -> None:
    positions = np.arange(500, dtype=np.int64)
    before = keyed_bits(5, positions)
    flips = [keyed_bits(5 ^ (1 << bit), positions) ^ before for bit in range(64)]
    flips += [keyed_bits(5, positions ^ (1 << bit)) ^ before for bit in range(62)]
    for flip in flips:
        assert abs(np.unpackbits(flip.view(np.uint8)).mean() - 0.5) < 0.02


def test_top_k_keeps_the_k_most_likely() -> None:
    weights = torch.tensor([0.1, 0.4, 0.2, 0.3])
    ids, values = kept_tokens(weights, 2, 1.0)
    assert ids.tolist() == [1, 3]
    assert values.tolist() == pytest.approx([0.4, 0.3])
    assert sorted(kept_tokens(weights, 9, 1.0)[0].tolist()) == [0, 1, 2, 3]


def test_top_p_keeps_the_smallest_set_that_reaches_p() -> None:
    weights = torch.tensor([0.5, 0.125, 0.25, 0.125])  # exact in binary
    assert kept_tokens(weights, 0, 0.4)[0].tolist() == [0]
    assert kept_tokens(weights, 0, 0.5)[0].tolist() == [0]
    assert kept_tokens(weights, 0, 0.51)[0].tolist() == [0, 2]
    assert kept_tokens(weights, 0, 0.75)[0].tolist() == [0, 2]
    assert len(kept_tokens(weights, 0, 0.8)[0]) == 3


def test_top_p_works_on_what_top_k_leaves() -> None:
    weights = torch.tensor([0.4, 0.3, 0.2, 0.1])
    assert kept_tokens(weights, 2, 0.5)[0].tolist() == [0], "0.4 / 0.7 reaches 0.5, 0.4 / 1 does not"
    assert kept_tokens(weights, 2, 0.6)[0].tolist() == [0, 1]


def test_a_flat_nucleus_larger_than_the_first_guess_is_whole() -> None:
    assert len(kept_tokens(torch.full((5000,), 0.5), 0, 0.9)[0]) == 4500


def test_filtered_rows_follow_the_renormalised_distribution() -> None:
    count = 8000
    logits = logits_of([0.4, 0.3, 0.2, 0.1])
    tokens, _ = sample(logits.expand(count, -1), draws(count, seed=5, top_k=3))
    got = np.bincount(tokens, minlength=4) / count
    np.testing.assert_allclose(got, [4 / 9, 3 / 9, 2 / 9, 0], atol=0.02)
    assert got[3] == 0


@settings(max_examples=60)
@given(
    seed=st.integers(-(2**70), 2**70),
    position=st.integers(0, 2**40),
    vocabulary=st.integers(1, 700),
    others=st.integers(0, 20),
)
def test_a_row_does_not_depend_on_its_neighbours(seed: int, position: int, vocabulary: int, others: int) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    logits = 4 * torch.randn(others + 1, vocabulary, generator=generator)
    mine = Draw(Sampling(), seed, position)
    alone = sample(logits[:1], [mine])
    company = sample(logits.flip(0), [*draws(others, seed=1, temperature=0.5, top_k=2), mine])
    assert (alone[0][0], alone[1][0]) == (company[0][-1], pytest.approx(company[1][-1], abs=1e-6))
    assert 0 <= alone[0][0] < vocabulary


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), dead=st.integers(1, 299))
def test_a_token_of_probability_zero_is_never_drawn(seed: int, dead: int) -> None:
    logits = torch.zeros(64, 300)
    logits[:, dead:] = -math.inf
    tokens, logprobs = sample(logits, draws(64, seed=seed))
    assert max(tokens) < dead
    assert logprobs == pytest.approx([-math.log(dead)] * 64, abs=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_give_a_nan_logprob_in_their_row_only(bad: float) -> None:
    logits = torch.zeros(4, 300)
    logits[1, 17] = bad
    logits[2] = -math.inf
    for sampling in ({}, {"top_k": 5}, {"temperature": 0.0}):
        tokens, logprobs = sample(logits, draws(4, **sampling))
        assert [math.isnan(value) for value in logprobs] == [False, True, True, False]
        assert all(0 <= token < 300 for token in tokens)


def test_no_rows_give_no_tokens() -> None:
    assert sample(torch.empty(0, 10), []) == ([], [])
