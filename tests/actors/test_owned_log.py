"""A log with one writer: fenced by another writer, not by garbage."""

import pytest

from astraflow.actors.base.owned_log import OwnedLog
from astraflow.bus import Bus, Topology
from astraflow.errors import FencedError
from astraflow.messages import Decision, DecisionKind

DECISION = Decision(kind=DecisionKind.ISSUE, source="s", epoch=0, index=0, group_id="g", group_size=1)


async def opened(bus: Bus, topology: Topology) -> OwnedLog:
    return await OwnedLog.open(bus, stream=topology.decisions, subject=topology.decision(), cursor=None)


async def test_garbage_behind_our_entry_is_stepped_over_and_buried(bus: Bus, topology: Topology) -> None:
    log = await opened(bus, topology)
    await log.append(DECISION, msg_id="a")
    session = await bus.link.session()
    for junk in (b"\xc1", b"", b"hello"):
        await session.request(topology.decision(), junk)
    await log.append(DECISION, msg_id="b")
    assert len(await bus.dead_letters.read()) == 3
    entries = [entry async for entry in bus.logs.read(topology.decisions, follow=False)]
    assert [entry.cursor.message_id for entry in entries] == ["a", "b"]


async def test_another_writer_fences_even_behind_garbage(bus: Bus, topology: Topology) -> None:
    first, second = await opened(bus, topology), await opened(bus, topology)
    await (await bus.link.session()).request(topology.decision(), b"\xc1")
    await second.append(DECISION, msg_id="second")
    with pytest.raises(FencedError):
        await first.append(DECISION, msg_id="first")


async def test_a_log_that_ends_in_garbage_can_be_opened(bus: Bus, topology: Topology) -> None:
    await (await bus.link.session()).request(topology.decision(), b"\xc1")
    log = await opened(bus, topology)
    await log.append(DECISION, msg_id="a")
    assert log.cursor is not None
    assert log.cursor.sequence == 2
