"""Open groups: which record counts."""

from collections.abc import Mapping

import pytest

from astraflow.dataflow.groups import Arrival, OpenGroup, Seat
from astraflow.dataflow.ledger import Fate
from astraflow.dataflow.tasks import tasks_of
from astraflow.messages import Decision, DecisionKind, Reason
from tests.dataflow.dataflow_world import config_of, episode_of

ISSUE = Decision(
    kind=DecisionKind.ISSUE,
    source="train",
    epoch=0,
    index=5,
    group_id="inc/train/0/5",
    group_size=2,
    cohort_id="c",
    cohort_size=2,
)
TASKS = tasks_of(config_of(), ISSUE, "math", range(2), lambda env, index: {})
REWARDS: Mapping[str, float] = {"solver": 1.0}


def group() -> OpenGroup:
    return OpenGroup(ISSUE, "math", ("solver",), 0, [Seat(), Seat()])


def test_the_first_good_record_counts_whatever_its_attempt() -> None:
    each = group()
    each.reissue(0, 1)
    assert each.seat_record(episode_of(TASKS[0], REWARDS), 7, max_attempts=3) is Arrival.TERMINAL
    assert each.seat_record(episode_of(TASKS[0], REWARDS), 8, max_attempts=3) is Arrival.LATE
    assert each.sequences() == [7]
    assert each.open_members() == [1]


@pytest.mark.parametrize("reason", [Reason.INFRA, Reason.TIMEOUT])
def test_infrastructure_is_given_another_attempt_until_they_are_used_up(reason: Reason) -> None:
    each = group()
    failed = episode_of(TASKS[0], {}, reason=reason)
    assert each.seat_record(failed, 1, max_attempts=2) is Arrival.RETRY
    assert each.seat_record(failed, 2, max_attempts=2) is Arrival.LATE, "the same failure twice"
    again = each.again(0, attempt=1, now=3.0, reason="failed")
    assert (again.kind, again.member, again.attempt, again.cohort_id) == (DecisionKind.REISSUE, 0, 1, "")
    each.reissue(0, 1)
    each.reissue(0, 1)
    assert each.seat_record(failed, 3, max_attempts=2) is Arrival.LATE, "of an attempt that was replaced"
    second = episode_of(tasks_of(config_of(), again, "math", [0], lambda env, index: {})[0], {}, reason=reason)
    assert each.seat_record(second, 4, max_attempts=2) is Arrival.TERMINAL
    assert each.seats[0].failure == reason


@pytest.mark.parametrize("reason", [Reason.ENV, Reason.GRADER, Reason.CANCELLED])
def test_other_failures_end_the_member_at_once(reason: Reason) -> None:
    each = group()
    assert each.seat_record(episode_of(TASKS[1], {}, reason=reason), 1, max_attempts=3) is Arrival.TERMINAL
    assert each.seats[1].failure == reason
    assert each.sequences() == []


def test_giving_up_touches_open_members_only() -> None:
    each = group()
    each.seat_record(episode_of(TASKS[0], REWARDS), 7, max_attempts=3)
    each.give_up(-1, Fate.UNUSED)
    assert [seat.failure for seat in each.seats] == ["", "unused"]
    assert each.complete
    each.reissue(1, 5)
    assert each.seats[1].attempt == 0, "what has ended isn't issued again"


def test_a_good_record_makes_the_next_attempt_needless() -> None:
    each = group()
    each.seat_record(episode_of(TASKS[0], {}, reason=Reason.INFRA), 1, max_attempts=3)
    assert each.retrying
    assert each.seat_record(episode_of(TASKS[0], REWARDS), 2, max_attempts=3) is Arrival.TERMINAL
    assert not each.retrying
