"""Version → step, and what it allows."""

from hypothesis import given
from hypothesis import strategies as st

from astraflow.dataflow.staleness import KEPT_VERSIONS, VersionMap, staleness
from astraflow.messages import VersionStep


def test_unknown_versions_count_as_old_as_they_can_be() -> None:
    versions = VersionMap([(10, 8), (12, 9)])
    assert versions.step_of(10) == 8
    assert versions.step_of(11) == 8, "between two known ones: the older"
    assert versions.step_of(99) == 9, "newer than all that is known"
    assert versions.step_of(3) == 0, "older than all that is known"
    assert VersionMap().step_of(5) == 0


def test_staleness_is_in_steps_not_in_versions() -> None:
    # a resume published version 12 again at step 9 without a step in between
    versions = VersionMap([(10, 8), (11, 9), (12, 9)])
    assert staleness(versions, [10], 11) == 3
    assert staleness(versions, [11], 11) == staleness(versions, [12], 11) == 2
    assert staleness(versions, [12], 7) == 0, "a lineage that was lost had gone further"


def test_after_a_fall_back_the_oldest_version_is_not_the_smallest() -> None:
    versions = VersionMap([(0, 0), (1, 1), (2, 0), (3, 1)])
    assert staleness(versions, [1, 2], 2) == 2
    assert staleness(versions, [1, 3], 2) == 1


def test_the_oldest_allowed_version_is_the_first_that_is_young_enough() -> None:
    versions = VersionMap([(0, 0), (1, 1), (2, 2), (3, 3)])
    assert versions.oldest_allowed(4, 2) == 2
    assert versions.oldest_allowed(3, 0) == 3
    assert versions.oldest_allowed(2, 2) == 0, "any"
    assert versions.oldest_allowed(9, 2) == 3, "nothing younger was published yet"
    assert VersionMap().oldest_allowed(9, 2) == 0
    fallen_back = VersionMap([(0, 0), (1, 1), (2, 2), (3, 1), (4, 2)])
    assert fallen_back.oldest_allowed(3, 1) == 4, "version 3 is older than version 2"


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.integers(0, 40), st.integers(0, 4))
def test_what_is_allowed_is_not_stale(gaps: list[int], train_step: int, max_staleness: int) -> None:
    versions = VersionMap()
    step = 0
    for version, gap in enumerate(gaps):
        step += gap
        versions.learn(version, step)
    version = versions.oldest_allowed(train_step, max_staleness)
    if step >= train_step - max_staleness:
        assert staleness(versions, [version], train_step) <= max_staleness
        assert version == 0 or staleness(versions, [version - 1], train_step) > max_staleness


def test_news_may_come_in_any_order_and_again() -> None:
    versions = VersionMap()
    versions.learn_all([VersionStep(version=2, step=2), VersionStep(version=0, step=0), VersionStep(version=1, step=1)])
    versions.learn(1, 5)
    assert versions.points() == [(0, 0), (1, 5), (2, 2)]
    assert VersionMap(versions.points()).points() == versions.points()


def test_old_versions_are_forgotten() -> None:
    versions = VersionMap((version, version) for version in range(KEPT_VERSIONS + 10))
    assert len(versions.points()) == KEPT_VERSIONS
    assert versions.step_of(3) == 0
