"""Look into a toy run while it goes on: its bus, its episodes, its members."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from astraflow.actors.base.connection import Connection
from astraflow.bus import Bus, NatsBus, topology_of, wiring
from astraflow.config import from_json
from astraflow.messages import Member, MemberState
from astraflow.node.record import fetch_record
from astraflow.node.runfolder import RunFolder

QUICK = ("bus.ack_wait_s=1", "bus.member_ttl_s=2", "bus.silence_s=2")


def connection_to(folder: Path) -> Connection:
    """How to reach the run of a run folder that is live; its paths are relative to the folder above `runs`."""
    owner = RunFolder(folder).owner()
    assert owner is not None
    assert owner.url
    return Connection(url=owner.url, region=owner.region, token_file=folder.parent.parent / owner.token_file)


@contextlib.asynccontextmanager
async def bus_of(connection: Connection, run: str = "demo") -> AsyncIterator[Bus]:
    """The run's bus."""
    record = await fetch_record(connection, run)
    topology = topology_of(from_json(record.config_json))
    async with NatsBus.connect(connection.options(), topology, producer="test") as bus:
        yield bus


async def members(bus: Bus, node: str = "") -> dict[str, Member]:
    """Who is there, by name; of one node if it is given."""
    entries = [entry.message for entry in (await bus.kv.entries(wiring.MEMBER.prefix)).values()]
    return {m.actor: m for m in entries if m.state is not MemberState.GONE and node in ("", m.node)}


async def episode_from(bus: Bus, producer: str) -> None:
    """Return when an actor publishes its next episode."""
    async with contextlib.aclosing(bus.logs.read(bus.topology.episodes, start="new")) as entries:
        async for entry in entries:
            if entry.envelope.producer == producer:
                return
