"""Messages that can't be read, kept in memory. The contract is `interface.DeadLetters`."""

import logging
from collections import Counter

from astraflow.bus.deadletters import MAX_BYTES, REASON, SEQUENCE, SUBJECT, letter_of, one_line
from astraflow.bus.entries import DeadLetter
from astraflow.bus.memory.server import MemoryServer
from astraflow.bus.memory.stream import NewMessage
from astraflow.bus.publish import MSG_ID, Stored
from astraflow.bus.topology import Topology

log = logging.getLogger(__name__)


class MemoryDeadLetters:
    """Stores, counts and reads them."""

    def __init__(self, server: MemoryServer, topology: Topology, counters: Counter[str]) -> None:
        self._server = server
        self._topology = topology
        self._counters = counters

    def add(self, *, stream: str, stored: Stored, reason: str) -> None:
        """Count and store a message that can't be read; one that several readers report is stored once."""
        kind = self._topology.row_of_stream[stream].kind
        self._counters[f"dead_letters.{kind}"] += 1
        log.warning("bus.dead_letter", extra={"stream": stream, "sequence": stored.sequence, "why": reason})
        headers = {
            MSG_ID: f"dead/{stream}/{stored.sequence}",
            REASON: one_line(reason),
            SUBJECT: stored.subject,
            SEQUENCE: str(stored.sequence),
        }
        letter = NewMessage(subject=self._topology.dead_letter(kind), data=stored.data[:MAX_BYTES], headers=headers)
        self._server.there(self._topology.dead_letters).append([letter])

    async def read(self) -> list[DeadLetter]:
        stream = self._server.there(self._topology.dead_letters)
        return [
            letter_of(stored)
            for sequence in stream.matching([">"], start=1)
            if (stored := stream.get(sequence)) is not None
        ]
