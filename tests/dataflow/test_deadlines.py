"""Deadlines of attempts."""

from astraflow.dataflow.deadlines import Deadlines
from tests.dataflow.test_groups import group


def test_a_clock_starts_when_the_task_is_first_seen() -> None:
    deadlines, each = Deadlines(10.0), group()
    assert deadlines.overdue([each], 1000.0) == []
    assert deadlines.overdue([each], 1009.9) == []
    assert deadlines.overdue([each], 1011.0) == [(each, 0), (each, 1)]
    assert deadlines.overdue([each], 1011.0) == [(each, 0), (each, 1)], "until it is dealt with"


def test_every_attempt_has_its_own_clock() -> None:
    deadlines, each = Deadlines(10.0), group()
    deadlines.overdue([each], 0.0)
    each.reissue(1, 1)
    assert deadlines.overdue([each], 11.0) == [(each, 0)]
    each.give_up(0, "expired")
    assert deadlines.overdue([each], 22.0) == [(each, 1)]


def test_no_time_counts_while_a_task_waits_in_its_queue() -> None:
    deadlines, each = Deadlines(10.0), group()
    deadlines.overdue([each], 0.0)
    deadlines.still_queued([each], 1, 9.0)  # of two tasks, the last one wasn't pulled yet
    assert deadlines.overdue([each], 12.0) == [(each, 0)]
    assert deadlines.overdue([each], 19.0) == [(each, 0), (each, 1)]


def test_a_failed_attempt_has_no_deadline() -> None:
    deadlines, each = Deadlines(10.0), group()
    each.seats[0].retry = True
    deadlines.overdue([each], 0.0)
    assert deadlines.overdue([each], 11.0) == [(each, 1)]
