"""What became of every issued task, per policy and by reason.

It only counts. Invariant: issued = open + buffered + the terminal reasons, at every moment; `late`, `retried`,
`unknown` and `replayed` count records and repeats, not tasks, and stand beside the sum.
"""

from collections.abc import Mapping

ISSUED = "issued"
OPEN = "open"  # its group isn't closed yet
BUFFERED = "buffered"  # in a group that waits for its batch
EMITTED = "emitted"
STALE = "stale"  # its group would be past max_staleness when trained
SURPLUS = "surplus"  # the policy had no credit for its group, another one had
SMALL_GROUP = "small-group"  # too few valid members to compare it with
EXPIRED = "expired"  # no record by the deadline of the last attempt
UNUSED = "unused"  # the policy was finished first
REDUNDANT = "redundant"  # its group had enough members before it

LATE = "late"  # records of tasks that had their terminal record
RETRIED = "retried"  # failed attempts that were issued again
UNKNOWN = "unknown"  # records of tasks that this run never issued
REPLAYED = "replayed"  # emitted another time
RECORD_COUNTS = frozenset({LATE, RETRIED, UNKNOWN, REPLAYED})


def imbalance(counts: Mapping[str, int]) -> int:
    """issued − everything that became of it; 0 unless a task was lost or counted twice."""
    ended = sum(count for reason, count in counts.items() if reason not in RECORD_COUNTS and reason != ISSUED)
    return counts.get(ISSUED, 0) - ended
