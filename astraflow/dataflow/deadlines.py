"""Which tasks should have had a record by now.

Clocks live in this process only and start when a task is first seen here: after a restart, or while a task still waits
in a queue that nobody serves, no time counts against it. Invariant: a task is overdue no sooner than `limit_s` after
it can have left its queue, as far as the queue's length tells.
"""

from collections.abc import Iterable
from typing import NamedTuple

from astraflow.dataflow.groups import OpenGroup


class Attempt(NamedTuple):
    """One attempt of one member."""

    group_id: str
    member: int
    attempt: int


class Deadlines:
    """The clocks of all open seats."""

    def __init__(self, limit_s: float) -> None:
        """`limit_s`: time allowed for one attempt."""
        self._limit_s = limit_s
        self._scan_every_s = min(1.0, limit_s / 10)
        self._scanned_at = float("-inf")
        self._since: dict[Attempt, float] = {}  # in the order in which the tasks were seen

    def overdue(self, groups: Iterable[OpenGroup], now: float) -> list[tuple[OpenGroup, int]]:
        """Open members whose time is up. Starts the clocks of those that it hasn't seen before.

        Looks at all seats once a second or ten times per limit, whichever is more often, and in between says [].
        """
        if now - self._scanned_at < self._scan_every_s:
            return []
        self._scanned_at = now
        since: dict[Attempt, float] = {}
        due = []
        for group in groups:
            for member, seat in enumerate(group.seats):
                if not seat.open or seat.retry:
                    continue
                attempt = Attempt(group.id, member, seat.attempt)
                since[attempt] = self._since.get(attempt, now)
                if now - since[attempt] >= self._limit_s:
                    due.append((group, member))
        self._since = since
        if due:
            self._scanned_at = float("-inf")  # until they are dealt with, say so every time
        return due

    def still_queued(self, groups: Iterable[OpenGroup], pending: int, now: float) -> None:
        """`pending` tasks of these groups' queue weren't delivered yet: the clocks of the newest ones start again.

        Queues deliver in order, so those are the last issued.
        """
        newest = sorted(groups, key=lambda group: group.ordinal, reverse=True)
        for group in newest:
            for member in reversed(group.open_members()):
                if pending <= 0:
                    return
                pending -= 1
                self._since[Attempt(group.id, member, group.seats[member].attempt)] = now
