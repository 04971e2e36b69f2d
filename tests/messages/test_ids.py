"""Ids, seeds and range sets."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.messages.ids import GroupKey, RangeSet, group_id, keyed_seed, parse_task_id, task_id


@given(st.lists(st.integers(0, 60)))
def test_range_set_behaves_like_a_set(values: list[int]) -> None:
    ranges, model = RangeSet(), set()
    for value in values:
        assert ranges.add(value) == (value not in model)
        model.add(value)
        assert list(ranges) == sorted(model)
        assert len(ranges) == len(model)
    assert [value for value in range(-1, 62) if value in ranges] == sorted(model)
    assert list(RangeSet(ranges.ranges())) == sorted(model)


@given(st.permutations(range(40)))
def test_range_set_of_a_whole_epoch_is_one_range(order: list[int]) -> None:
    ranges = RangeSet()
    for value in order:
        ranges.add(value)
        starts_and_ends = ranges.ranges()
        assert all(end < start for (_, end), (start, _) in itertools.pairwise(starts_and_ends))
    assert ranges.ranges() == [(0, 40)]


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 99))
def test_task_ids_can_be_read_back(epoch: int, index: int, member: int) -> None:
    key = GroupKey("math-easy", epoch, index)
    assert parse_task_id(task_id(group_id("f00d", key), member)) == ("f00d", key, member)


@pytest.mark.parametrize(
    "text", ["", "a/b/1/2", "a/b/1/2/3/4", "a/b/-1/2/3", "a/b/1/x/3", "a/b/01/2/3", "a/b/1/2/³", "a/b/1/2/ 3"]
)
def test_what_is_no_task_id_is_none(text: str) -> None:
    assert parse_task_id(text) is None


def test_group_keys_sort_by_number() -> None:
    assert sorted([GroupKey("s", 0, 10), GroupKey("s", 0, 9), GroupKey("a", 5, 0)])[1].index == 9


def test_seeds_are_fixed_for_ever_and_differ_by_key() -> None:
    assert keyed_seed(0, "task", "train", 0, 1, 2) == keyed_seed(0, "task", "train", 0, 1, 2)
    seeds = {keyed_seed(0, "task", "train", 0, 1, member) for member in range(1000)}
    assert len(seeds) == 1000
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert keyed_seed(0, "ab", "c") != keyed_seed(0, "a", "bc")
    assert keyed_seed(1, "x") == 3793262029084773785, "a seed that moves makes every run file mean another run"
