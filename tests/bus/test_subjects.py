"""Subjects and patterns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.bus.subjects import SubjectTree, matches

TOKEN = st.sampled_from(["a", "b", "c"])
SUBJECTS = st.lists(TOKEN, min_size=1, max_size=4).map(".".join)
PATTERNS = st.builds(
    lambda tokens, rest: ".".join([*tokens, *rest]) or "*",
    st.lists(st.sampled_from(["a", "b", "c", "*"]), max_size=4),
    st.sampled_from([[], [">"]]),
)


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.b.c", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        (">", "a", True),
        ("*.b.>", "a.b.c", True),
        ("*.b.>", "a.b", False),
    ],
)
def test_a_star_is_one_token_and_an_arrow_the_rest(pattern: str, subject: str, expected: bool) -> None:
    assert matches(pattern, subject) is expected


@given(st.lists(PATTERNS, max_size=12), SUBJECTS)
def test_a_tree_finds_what_each_pattern_alone_would(patterns: list[str], subject: str) -> None:
    tree: SubjectTree[int] = SubjectTree()
    for number, pattern in enumerate(patterns):
        tree.add(pattern, number)
    assert sorted(tree.matching(subject)) == [n for n, pattern in enumerate(patterns) if matches(pattern, subject)]


@given(st.lists(PATTERNS, max_size=12), SUBJECTS, st.data())
def test_what_was_discarded_is_not_found_and_leaves_nothing_behind(
    patterns: list[str], subject: str, data: st.DataObject
) -> None:
    tree: SubjectTree[int] = SubjectTree()
    for number, pattern in enumerate(patterns):
        tree.add(pattern, number)
    order = data.draw(st.permutations(range(len(patterns))))
    for count, number in enumerate(order, start=1):
        tree.discard(patterns[number], number)
        tree.discard(patterns[number], number)
        left = set(order[count:])
        assert set(tree.matching(subject)) == {n for n in left if matches(patterns[n], subject)}
