"""Sources and how they are mixed."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.config import SourceSection
from astraflow.dataflow.sources import Choice, Mixer, Source, permutation
from astraflow.errors import ConfigError
from astraflow.messages.ids import GroupKey


def source(name: str = "s", *, env_size: int | None = None, seed: int = 0, **section: Any) -> Source:
    return Source(name, SourceSection(env="math", **section), env_size=env_size, seed=seed)


def drawn(mixer: Mixer, count: int, allowed: list[str] | None = None) -> list[GroupKey]:
    keys = []
    for _ in range(count):
        choice = mixer.choose(allowed or list(mixer.sources))
        assert choice is not None
        mixer.advance(choice.key.source, choice.position)
        keys.append(choice.key)
    return keys


@given(st.integers(1, 300), st.integers(0, 2**63 - 1))
def test_a_permutation_has_every_index_once(size: int, seed: int) -> None:
    assert sorted(permutation(size, seed)) == list(range(size))


def test_the_order_of_a_shuffle_never_moves() -> None:
    assert permutation(8, 1).tolist() == [0, 5, 4, 1, 2, 6, 7, 3]


def test_every_epoch_is_shuffled_anew_and_whole() -> None:
    shuffled = source(first=100, size=20, epochs=2, shuffle=True)
    keys = [shuffled.key_at(position) for position in range(40)]
    assert [key.epoch for key in keys] == [0] * 20 + [1] * 20
    first, second = [key.index for key in keys[:20]], [key.index for key in keys[20:]]
    assert sorted(first) == sorted(second) == list(range(100, 120))
    assert first != second
    assert first != sorted(first)
    assert not shuffled.ends_at(39)
    assert shuffled.ends_at(40)


def test_a_source_without_an_end_counts_on_in_epoch_0() -> None:
    endless = source(first=7)
    assert endless.key_at(10**6) == GroupKey("s", 0, 10**6 + 7)
    assert not endless.ends_at(10**9)


def test_size_0_means_all_that_the_environment_has_from_first_on() -> None:
    assert source(first=3, env_size=10).size == 7


@pytest.mark.parametrize(
    "section", [{"size": 8, "first": 3}, {"first": 10}, {"first": 11, "size": 0}], ids=["beyond", "none", "past"]
)
def test_tasks_that_the_environment_lacks_are_a_config_error(section: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"environment 'math' has 10"):
        source(env_size=10, **section)


def test_shuffling_without_an_end_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="give it a size"):
        source(shuffle=True)


def test_shares_follow_the_weights() -> None:
    mixer = Mixer.fresh({"a": source("a", weight=3.0), "b": source("b", weight=1.0)}, seed=5)
    counts = Counter(key.source for key in drawn(mixer, 400))
    assert counts == {"a": 300, "b": 100}


@given(st.integers(0, 2**32), st.lists(st.floats(0.1, 10), min_size=1, max_size=4), st.integers(0, 60))
def test_a_restored_mixer_goes_on_where_it_was(seed: int, weights: list[float], split: int) -> None:
    sources = {f"s{k}": source(f"s{k}", weight=weight, size=7) for k, weight in enumerate(weights)}
    whole = drawn(Mixer.fresh(sources, seed=seed), 80)
    mixer = Mixer.fresh(sources, seed=seed)
    start = drawn(mixer, split)
    rest = drawn(Mixer(sources, issued=mixer.issued, clocks=mixer.clocks), 80 - split)
    assert start + rest == whole


def test_a_source_that_had_to_wait_gets_its_share_but_no_burst() -> None:
    mixer = Mixer.fresh({"a": source("a"), "b": source("b")}, seed=0)
    drawn(mixer, 100, allowed=["a"])
    counts = Counter(key.source for key in drawn(mixer, 20))
    assert abs(counts["a"] - counts["b"]) <= 1


def test_looking_does_not_move_the_original() -> None:
    mixer = Mixer.fresh({"a": source("a")}, seed=0)
    drawn(mixer.copy(), 5)
    assert mixer.choose(["a"]) == Choice(GroupKey("a", 0, 0), 0)


def test_an_exhausted_source_leaves_the_mix() -> None:
    mixer = Mixer.fresh({"a": source("a", size=2, epochs=1), "b": source("b", size=3, epochs=1)}, seed=0)
    assert Counter(key.source for key in drawn(mixer, 5)) == {"a": 2, "b": 3}
    assert mixer.choose(["a", "b"]) is None
