"""Where messages go that can't be read: kept as they were, with the reason, never in an actor's way.

Best effort by design: a dead letter that can't be stored is logged and counted. Invariant: the same message reported by
several readers is stored once.
"""

import logging
from collections import Counter
from functools import partial

from astraflow.bus.entries import DeadLetter
from astraflow.bus.link import Link
from astraflow.bus.parts import part_size
from astraflow.bus.publish import Publisher, Stored, read_stored
from astraflow.bus.reader import stream_state
from astraflow.bus.retry import until_answered
from astraflow.bus.topology import Topology
from astraflow.errors import BusError
from astraflow.messages.printable import printable

log = logging.getLogger(__name__)

REASON, SUBJECT, SEQUENCE = "Af-Reason", "Af-Subject", "Af-Sequence"
MAX_BYTES = 128 << 10  # of the body; longer ones are cut
DEADLINE_S = 5.0


def one_line(reason: str) -> str:
    """As a header can hold it."""
    return " ".join(reason.encode("ascii", "replace").decode().split())[:500]


def letter_of(stored: Stored) -> DeadLetter:
    """What a stored dead letter says; anybody may write one."""
    told = stored.headers.get(SEQUENCE, "")
    sequence = int(told) if told.isascii() and told.isdigit() and len(told) < 20 else 0
    return DeadLetter(
        printable(stored.headers.get(SUBJECT, "")), sequence, printable(stored.headers.get(REASON, "")), stored.data
    )


class NatsDeadLetters:
    """`DeadLetters`: stores, counts and reads them."""

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
        try:
            await self._publisher.store(
                self._topology.dead_letter(kind),
                data[: part_size(self._link, MAX_BYTES)],
                stream=self._topology.dead_letters,
                msg_id=f"dead/{stream}/{sequence}",
                headers={REASON: one_line(reason), SUBJECT: subject, SEQUENCE: str(sequence)},
                deadline_s=DEADLINE_S,
            )
        except BusError as exc:
            self._counters["dead_letters.lost"] += 1
            log.error("bus.dead_letter_lost", extra={"stream": stream, "sequence": sequence, "why": str(exc)})

    async def read(self) -> list[DeadLetter]:
        stream = self._topology.dead_letters
        state = await until_answered(self._link, partial(stream_state, stream=stream))
        found = []
        for sequence in range(state.first_sequence, state.last_sequence + 1):
            stored = await until_answered(self._link, partial(read_stored, stream=stream, seq=sequence))
            if stored is not None:
                found.append(letter_of(stored))
        return found
