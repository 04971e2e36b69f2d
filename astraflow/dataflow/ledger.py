"""What became of every issued task, per policy and by reason.

It only names. Invariant: issued = open + buffered + the terminal fates, at every moment; `late`, `retried`, `unknown`
and `replayed` count records and repeats, not tasks, and stand beside the sum.
"""

from enum import StrEnum

ISSUED = "issued"
LATE = "late"  # records of tasks that had their terminal record
RETRIED = "retried"  # failed attempts that were issued again
UNKNOWN = "unknown"  # records of tasks that this run never issued
REPLAYED = "replayed"  # emitted another time
RECORD_COUNTS = frozenset({LATE, RETRIED, UNKNOWN, REPLAYED})


class Fate(StrEnum):
    """What became of a task for one policy; open and buffered ones have yet to meet theirs.

    The ledger counts under these names; what a filter dropped, under the filter's.
    """

    OPEN = "open"  # its group isn't closed yet
    BUFFERED = "buffered"  # in a group that waits for its batch
    EMITTED = "emitted"
    STALE = "stale"  # it would be past max_staleness when trained
    SURPLUS = "surplus"  # the policy had no credit for its group, another one had
    SMALL_GROUP = "small-group"  # too few valid members to compare it with
    FILTERED = "filtered"  # a filter dropped its group
    UNUSED = "unused"  # the policy was finished first
    REDUNDANT = "redundant"  # its group had enough members before it
    EXPIRED = "expired"  # no record by the deadline of the last attempt
    NO_TOKENS = "no-tokens"  # the policy sampled none in its episode
    NO_LOGPROBS = "no-logprobs"
    MALFORMED = "malformed"  # arrays or version spans that don't fit together
    # What its episode, or the making of its task, ended with: see Reason.
    TIMEOUT = "timeout"
    ENV = "env"
    GRADER = "grader"
    INFRA = "infra"
    CANCELLED = "cancelled"
