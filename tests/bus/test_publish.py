"""Publishing: once in the log, whatever happens on the wire."""

import asyncio
from pathlib import Path

import pytest

from astraflow.bus import Bus, BusOptions, EmbeddedServer, NatsBus, Topology
from astraflow.errors import BusError
from astraflow.messages import Decision, DecisionKind, GenRequest, Sampling, array_of
from tests.support import AT_ONCE_S, eventually, kill, make_episode, make_task, make_topology, server_with


def _decision(index: int) -> Decision:
    return Decision(kind=DecisionKind.ISSUE, source="s", epoch=0, index=index, group_id="g", group_size=1)


def _request(id: str = "r") -> GenRequest:
    return GenRequest(
        id=id,
        attempt=0,
        policy="solver",
        prompt_tokens=array_of([1], "i4"),
        sampling=Sampling(),
        seed=0,
        reply_subject="af.test.reply.n.1",
    )


async def test_a_publish_during_an_outage_waits_and_is_stored_once(
    bus: Bus, topology: Topology, nats_server: EmbeddedServer
) -> None:
    await kill(nats_server)
    async with asyncio.TaskGroup() as group:
        publish = bus.publish(topology.episode("math"), make_episode(), msg_id="a", deadline_s=None)
        task = group.create_task(publish)
        await eventually(lambda: not bus.link.up.is_set())
        await nats_server.start()
    assert task.result().sequence == 1
    assert bus.link.reconnects == 1


async def test_the_deadline_says_why(bus: Bus, topology: Topology, nats_server: EmbeddedServer) -> None:
    await kill(nats_server)
    with pytest.raises(BusError, match=r"isn't stored after 1 s"):
        await bus.publish(topology.episode("math"), make_episode(), msg_id="a", deadline_s=1.0)


async def test_a_server_with_a_small_max_payload_takes_big_messages(tmp_path: Path, topology: Topology) -> None:
    async with (
        server_with("max_payload: 32768", tmp_path) as url,
        NatsBus.connect(BusOptions(url=url), topology, producer="test") as bus,
    ):
        await bus.ensure()
        await bus.publish(topology.episode("math"), make_episode(prompt="x" * 200_000), msg_id="a")
        await bus.publish(topology.task("math"), make_task(payload={"text": "x" * 200_000}), msg_id="b")
        entry = await bus.logs.last(topology.episodes, topology.episode("math"))
        assert entry is not None
        assert len(entry.message.prompt) == 200_000
        async with bus.queues.open(topology.tasks, topology.task_consumer("math")) as queue:
            assert len((await queue.fetch(1))[0].message.payload["text"]) == 200_000
        data = bytes(100_000)
        refs = await bus.parts.put(topology.snapshots, topology.snapshot_part(), data, msg_prefix="s")
        assert await bus.parts.get(topology.snapshots, topology.snapshot_part(), refs) == data
        assert bus.link.reconnects == 0


async def test_a_denied_publish_fails_at_once(tmp_path: Path, topology: Topology) -> None:
    denied = f'publish: {{ deny: ["{topology.manifest("solver")}"] }}'
    users = f"authorization {{ users: [ {{ user: u, password: p, permissions: {{ {denied} }} }} ] }}"
    async with (
        server_with(users, tmp_path) as url,
        NatsBus.connect(BusOptions(url=url, user="u", password="p"), topology, producer="test") as bus,
    ):
        await bus.ensure()
        async with asyncio.timeout(AT_ONCE_S):
            with pytest.raises(BusError, match="don't allow publish"):
                await bus.publish(topology.manifest("solver"), make_task(), msg_id="a", deadline_s=None)
        await bus.publish(topology.episode("math"), make_episode(), msg_id="b")  # the connection goes on


async def test_events_reach_the_log_and_never_raise(bus: Bus, topology: Topology, nats_server: EmbeddedServer) -> None:
    await bus.event("warning", "hello", "a text", number=3)
    entry = await bus.logs.last(topology.events, topology.event("warning"))
    assert entry is not None
    assert (entry.message.name, entry.message.actor, entry.message.fields) == ("hello", "test", {"number": 3})
    await kill(nats_server)
    await bus.event("info", "lost", "nobody hears it")
    assert bus.counters["events.dropped"] == 1


async def test_a_server_without_room_is_named(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path / "small", max_store_bytes=2_000_000)
    await server.start()
    bounded, unbounded = (
        make_topology("bounded"),
        make_topology(
            "unbounded",
            max_episodes_bytes=0,
            max_metrics_bytes=0,
            max_events_bytes=0,
            max_dead_letters_bytes=0,
            max_blobs_bytes=0,
            max_members_bytes=0,
        ),
    )
    async with NatsBus.connect(server.options, bounded, producer="test") as bus:
        with pytest.raises(BusError, match=r"no room for stream AF_bounded_local_\w+ \(max_bytes=\d+\)"):
            await bus.ensure()
    async with NatsBus.connect(server.options, unbounded, producer="test") as bus:
        await bus.ensure()

        async def fill() -> None:
            for number in range(20):
                episode = make_episode(prompt="x" * 300_000)
                await bus.publish(unbounded.episode("math"), episode, msg_id=str(number), deadline_s=1.0)

        with pytest.raises(BusError, match="no room left"):
            await fill()
    await server.stop()
