"""Byte strings as parts."""

import random

from hypothesis import given
from hypothesis import strategies as st

from astraflow.bus import Bus, EmbeddedServer, Topology
from astraflow.bus.parts import cut
from tests.support import kill


@given(st.binary(max_size=200), st.integers(1, 50))
def test_cuts_are_the_bytes_again_and_only_the_last_is_short(data: bytes, size: int) -> None:
    pieces = list(cut(data, size))
    assert b"".join(pieces) == data
    assert all(len(piece) == size for piece in pieces[:-1])


async def test_parts_survive_kill_9_of_the_server(bus: Bus, topology: Topology, nats_server: EmbeddedServer) -> None:
    stream, subject = topology.weights("solver"), topology.weight_part("solver", 1)
    data = random.Random(0).randbytes(3_000_000)
    parts = await bus.parts.put(stream, subject, data, msg_prefix="w/1")
    await kill(nats_server)
    await nats_server.start()
    assert await bus.parts.get(stream, subject, parts) == data
