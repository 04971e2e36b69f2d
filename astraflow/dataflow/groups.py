"""An open group: which of its members have their terminal record, and which must be tried again.

It knows no policy, no reward and no clock. States of a seat:

    open ──record──▶ done                 the record may be trained on; its episode is kept
    open ──failure─▶ open, retry          infra or timeout, and attempts are left; a REISSUE makes it open again
    open ──failure─▶ failed(fate)         any other reason, or no attempt is left
    open ──CLOSE───▶ failed(fate)         no record by the deadline of the last attempt, or nobody needs it any more

Invariant: a seat leaves `open` once. Whichever attempt's record comes first counts; all others are late.
"""

from enum import StrEnum

import msgspec

from astraflow.dataflow.ledger import Fate
from astraflow.messages import TRAINABLE_REASONS, Decision, DecisionKind, Episode, Reason
from astraflow.messages.ids import GroupKey

_RETRIED_REASONS = frozenset({Reason.INFRA, Reason.TIMEOUT})


class Arrival(StrEnum):
    """What a record was good for."""

    TERMINAL = "terminal"  # it ended its task
    RETRY = "retry"  # its attempt failed and will be issued again
    LATE = "late"  # its task had ended, or a newer attempt replaced it
    UNKNOWN = "unknown"  # no task of this run
    SEEN = "seen"  # this place in the log was read before


class Seat(msgspec.Struct):
    """One member. In snapshots."""

    attempt: int = 0
    retry: bool = False
    sequence: int = 0  # of the kept episode in EPISODES; 0 = none
    failure: str = ""  # the fate of a member without an episode; "" = open or done

    @property
    def open(self) -> bool:
        return not self.sequence and not self.failure

    @property
    def fate(self) -> Fate | None:
        """Why there is no episode; None = open or done."""
        return Fate(self.failure) if self.failure else None


class OpenGroup(msgspec.Struct):
    """A group with at least one open seat. In snapshots; append fields only."""

    decision: Decision  # that issued it
    env: str
    trained_by: tuple[str, ...] = msgspec.field(name="feeds")  # the policies that learn from it
    ordinal: int  # counts issued groups; older is smaller
    seats: list[Seat]

    @property
    def id(self) -> str:
        return self.decision.group_id

    @property
    def key(self) -> GroupKey:
        return self.decision.key

    @property
    def wanted(self) -> int:
        """Members that it needs; the others are redundant."""
        return self.decision.group_size - self.decision.extra

    @property
    def enough(self) -> bool:
        """It has the members that it needs while redundant ones are still open."""
        return self.decision.extra > 0 and not self.complete and len(self.sequences()) >= self.wanted

    @property
    def complete(self) -> bool:
        """No seat is open."""
        return not any(seat.open for seat in self.seats)

    @property
    def retrying(self) -> bool:
        """A member waits for its next attempt to be issued."""
        return any(seat.retry for seat in self.seats)

    def sequences(self) -> list[int]:
        """Places of the kept episodes in EPISODES, in order of member."""
        return [seat.sequence for seat in self.seats if seat.sequence]

    def open_members(self) -> list[int]:
        """Members without a terminal record."""
        return [member for member, seat in enumerate(self.seats) if seat.open]

    def seat_record(self, episode: Episode, sequence: int, *, max_attempts: int) -> Arrival:
        """Put a record in its member's seat. `sequence` is its place in EPISODES, from 1 on."""
        seat = self.seats[episode.member]
        if not seat.open:
            return Arrival.LATE
        if episode.reason in TRAINABLE_REASONS:
            seat.sequence, seat.retry = sequence, False
            return Arrival.TERMINAL
        if episode.attempt < seat.attempt or seat.retry:
            return Arrival.LATE
        if episode.reason in _RETRIED_REASONS and seat.attempt + 1 < max_attempts:
            seat.retry = True
            return Arrival.RETRY
        seat.failure = Fate(episode.reason)
        return Arrival.TERMINAL

    def reissue(self, member: int, attempt: int) -> None:
        """The member's task was issued again. An attempt that isn't newer changes nothing."""
        seat = self.seats[member]
        if seat.open and attempt > seat.attempt:
            seat.attempt, seat.retry = attempt, False

    def give_up(self, member: int, fate: Fate) -> None:
        """Close the member without a record, or all open ones if member = -1."""
        for seat in self.seats if member < 0 else [self.seats[member]]:
            if seat.open:
                seat.failure, seat.retry = fate, False

    def again(self, member: int, *, attempt: int, now: float, reason: str) -> Decision:
        """The decision that issues a member's task another time."""
        return msgspec.structs.replace(
            self.decision,
            kind=DecisionKind.REISSUE,
            member=member,
            attempt=attempt,
            decided_at=now,
            reason=reason,
            # A cohort waits for its exact number of first attempts.
            **({} if attempt == 0 else {"cohort_id": "", "cohort_size": 0}),
        )

    def closing(self, member: int, *, now: float, fate: Fate) -> Decision:
        """The decision that gives a member up; member = -1 gives up all that are open."""
        return msgspec.structs.replace(
            self.decision, kind=DecisionKind.CLOSE, member=member, decided_at=now, reason=fate
        )
