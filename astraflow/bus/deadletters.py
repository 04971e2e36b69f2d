"""Where messages go that can't be read: kept as they were, with the reason, never in an actor's way.

Best effort by design: a dead letter that can't be stored is logged and counted. Invariant: the same message reported by
several readers is stored once.
"""

import logging
from collections import Counter
from dataclasses import dataclass

from astraflow.bus.link import Link
from astraflow.bus.parts import part_size
from astraflow.bus.publish import Publisher, Stored
from astraflow.bus.topology import Topology
from astraflow.errors import BusError

log = logging.getLogger(__name__)

REASON, SUBJECT, SEQUENCE = "Af-Reason", "Af-Subject", "Af-Sequence"
MAX_BYTES = 128 << 10  # of the body; longer ones are cut
DEADLINE_S = 5.0


@dataclass(frozen=True)
class DeadLetter:
    """A message that couldn't be read. `data` is at most MAX_BYTES of its body."""

    subject: str
    sequence: int  # in the stream it came from
    reason: str
    data: bytes

    @classmethod
    def of(cls, stored: Stored) -> "DeadLetter":
        """From the message in DEAD_LETTERS."""
        headers = stored.headers
        return cls(headers.get(SUBJECT, ""), int(headers.get(SEQUENCE, "0")), headers.get(REASON, ""), stored.data)


class DeadLetters:
    """Stores and counts dead letters."""

    def __init__(self, link: Link, topology: Topology, publisher: Publisher, counters: Counter[str]) -> None:
        self._link = link
        self._topology = topology
        self._publisher = publisher
        self._counters = counters

    async def add(self, *, stream: str, subject: str, sequence: int, data: bytes, reason: str) -> None:
        """Count and store a message that can't be read. Never raises BusError."""
        kind = self._topology.row_of_stream[stream].kind
        self._counters[f"dead_letters.{kind}"] += 1
        log.warning("bus.dead_letter", extra={"stream": stream, "sequence": sequence, "why": reason})
        one_line = " ".join(reason.encode("ascii", "replace").decode().split())[:500]
        try:
            await self._publisher.store(
                self._topology.dead_letter(kind),
                data[: part_size(self._link, MAX_BYTES)],
                stream=self._topology.dead_letters,
                msg_id=f"dead/{stream}/{sequence}",
                headers={REASON: one_line, SUBJECT: subject, SEQUENCE: str(sequence)},
                deadline_s=DEADLINE_S,
            )
        except BusError as exc:
            self._counters["dead_letters.lost"] += 1
            log.error("bus.dead_letter_lost", extra={"stream": stream, "sequence": sequence, "why": str(exc)})
