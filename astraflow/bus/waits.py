"""Which publishes of this process wait, since when and why: so that back-pressure and full disks are sentences.

It waits for nothing itself. It is read from other threads (the heartbeat's): every change is one dict operation.
"""

from dataclasses import dataclass

from astraflow import clock


@dataclass(frozen=True, slots=True)
class Wait:
    """A publish that the server has refused or not answered at least once."""

    what: str
    reason: str
    since: float  # monotonic


class Waits:
    """The publishes that wait now."""

    def __init__(self) -> None:
        self._waits: dict[int, Wait] = {}

    def note(self, publish: int, what: str, reason: str) -> None:
        """`publish` is any number that is its own for as long as it runs."""
        before = self._waits.get(publish)
        self._waits[publish] = Wait(what, reason, before.since if before else clock.monotonic())

    def end(self, publish: int) -> None:
        self._waits.pop(publish, None)

    def sentence(self) -> tuple[str, float]:
        """What waits and why, and for how many seconds; "" if nothing does."""
        waits = list(self._waits.values())
        if not waits:
            return "", 0.0
        oldest = min(waits, key=lambda wait: wait.since)
        others = f" and {len(waits) - 1:,} more" if len(waits) > 1 else ""
        return f"{oldest.what}{others}: {oldest.reason}", clock.monotonic() - oldest.since
