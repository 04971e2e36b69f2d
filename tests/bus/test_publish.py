"""Publishing: once in the log, whatever happens on the wire."""

import asyncio
from pathlib import Path

import pytest

from astraflow.bus import Bus, BusOptions, EmbeddedServer, NatsBus, Topology
from astraflow.errors import BusError, ConfigError, FencedError, MessageError
from astraflow.messages import Decision, DecisionKind, GenRequest, Sampling, array_of
from tests.support import AT_ONCE_S, eventually, kill, make_episode, make_task, make_topology, server_with


def _decision(index: int) -> Decision:
    return Decision(kind=DecisionKind.ISSUE, source="s", epoch=0, index=index, group_id="g", group_size=1)


def _request(id: str = "r") -> GenRequest:
    return GenRequest(
        id=id, attempt=0, policy="solver", prompt_tokens=array_of([1], "i4"), sampling=Sampling(), seed=0,
        reply_subject="af.test.reply.n.1",
    )  # fmt: skip


async def test_the_same_id_is_stored_once_and_says_so(bus: Bus, topology: Topology) -> None:
    first = await bus.publish(topology.episode("math"), make_episode(), msg_id="a")
    again = await bus.publish(topology.episode("math"), make_episode(), msg_id="a")
    assert (first.sequence, first.duplicate) == (1, False)
    assert (again.sequence, again.duplicate) == (1, True)
    assert (await bus.logs.state(topology.episodes)).messages == 1
    assert bus.counters["publish.duplicates"] == 1


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


async def test_a_full_queue_pushes_back_until_there_is_room(nats_server: EmbeddedServer) -> None:
    topology = make_topology(max_tasks=2)
    async with NatsBus.connect(nats_server.options, topology, producer="test") as bus:
        await bus.ensure()
        for index in range(2):
            await bus.publish(topology.task("math"), make_task(), msg_id=str(index))
        with pytest.raises(BusError, match="full: maximum messages per subject"):
            await bus.publish(topology.task("math"), make_task(), msg_id="2", deadline_s=2.0)
        await bus.publish(topology.task("code"), make_task(env="code"), msg_id="3", deadline_s=10.0)  # not affected
        async with (
            asyncio.TaskGroup() as group,
            bus.queues.open(topology.tasks, topology.task_consumer("math")) as queue,
        ):
            waiting = group.create_task(bus.publish(topology.task("math"), make_task(), msg_id="2", deadline_s=None))
            await (await queue.fetch(1))[0].ack()
        assert not waiting.result().duplicate


async def test_waiting_for_a_full_queue_does_not_hold_up_others(nats_server: EmbeddedServer) -> None:
    topology = make_topology(max_tasks=1)
    big = make_task(payload={"text": "x" * 400_000})
    async with NatsBus.connect(nats_server.options, topology, producer="test") as bus:
        await bus.ensure()
        await bus.publish(topology.task("math"), make_task(), msg_id="first")
        async with asyncio.TaskGroup() as group:
            blocked = [
                group.create_task(bus.publish(topology.task("math"), big, msg_id=f"blocked-{n}", deadline_s=None))
                for n in range(40)  # 16 MB, more than the window of publishes under way
            ]
            await eventually(lambda: sum(bus.counters.values()) >= 40)
            for n in range(20):
                await bus.publish(topology.episode("math"), make_episode(), msg_id=f"free-{n}", deadline_s=20.0)
            for task in blocked:
                task.cancel()


async def test_an_expected_sequence_fences_the_second_writer(bus: Bus, topology: Topology) -> None:
    subject = topology.decision()
    one = await bus.publish(subject, _decision(1), msg_id="e1/1", expected_last_sequence=0)
    await bus.publish(subject, _decision(2), msg_id="e1/2", expected_last_sequence=one.sequence)
    with pytest.raises(FencedError, match=r"e1/2 at 2.*e0/2 expected sequence 1"):
        await bus.publish(subject, _decision(2), msg_id="e0/2", expected_last_sequence=one.sequence)
    assert (await bus.logs.state(topology.decisions)).messages == 2


async def test_an_own_message_at_the_tail_is_success(bus: Bus, topology: Topology) -> None:
    subject = topology.decision()
    first = await bus.publish(subject, _decision(1), msg_id="e1/1", expected_last_sequence=0)
    again = await bus.publish(subject, _decision(1), msg_id="e1/1", expected_last_sequence=0)
    assert (again.sequence, again.duplicate) == (first.sequence, True)


async def test_a_subject_without_a_stream_is_a_config_error(bus: Bus) -> None:
    with pytest.raises(ConfigError, match="no stream"):
        await bus.publish("af.test.nowhere", make_task(), msg_id="a")


async def test_a_missing_stream_fails_at_the_deadline(nats_server: EmbeddedServer, topology: Topology) -> None:
    async with NatsBus.connect(nats_server.options, topology, producer="test") as bus:
        with pytest.raises(BusError, match="no such stream"):
            await bus.publish(topology.task("math"), make_task(), msg_id="a", deadline_s=1.0)


async def test_a_split_message_is_one_message_and_fences_too(bus: Bus, topology: Topology) -> None:
    big = make_episode(prompt="x" * 3_000_000)
    subject = topology.episode("math")
    first = await bus.publish(subject, big, msg_id="a", expected_last_sequence=0)
    assert (await bus.publish(subject, big, msg_id="a")).duplicate
    assert (await bus.publish(subject, big, msg_id="a")).sequence == first.sequence
    assert (await bus.publish(subject, big, msg_id="a", expected_last_sequence=0)).duplicate
    with pytest.raises(FencedError):
        await bus.publish(subject, big, msg_id="b", expected_last_sequence=0)
    entries = [entry async for entry in bus.logs.read(topology.episodes, follow=False)]
    assert [len(entry.message.prompt) for entry in entries] == [3_000_000]


async def test_a_purge_below_any_message_leaves_later_split_ones_whole(bus: Bus, topology: Topology) -> None:
    subject = topology.episode("math")

    async def publish(number: int) -> int:
        size = 600_000 if number % 2 else 10
        episode = make_episode(str(number), prompt="x" * size)
        return (await bus.publish(subject, episode, msg_id=str(number))).sequence

    async with asyncio.TaskGroup() as group:  # concurrently: their parts would interleave if they could
        tasks = [group.create_task(publish(number)) for number in range(16)]
    sequences = sorted(task.result() for task in tasks)
    for count, floor in enumerate(sequences):
        await bus.logs.purge(topology.episodes, below_sequence=floor)
        left = [entry.sequence async for entry in bus.logs.read(topology.episodes, follow=False)]
        assert left == sequences[count:]
    assert not await bus.dead_letters.read()


async def test_over_the_limit_of_parts_is_a_message_error(nats_server: EmbeddedServer) -> None:
    topology = make_topology(max_message_bytes=1000)
    async with NatsBus.connect(nats_server.options, topology, producer="test") as bus:
        await bus.ensure()
        with pytest.raises(MessageError, match="at most 999000 fit"):
            await bus.publish(topology.episode("math"), make_episode(prompt="x" * 1_000_000), msg_id="a")


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


async def test_a_ttl_is_rounded_up_and_ends_the_message(bus: Bus, topology: Topology) -> None:
    await bus.publish(topology.gen("solver"), _request(), msg_id="a", ttl_s=0.2)
    assert (await bus.queues.depths())["gen.solver"] == 1

    async def gone() -> bool:
        return (await bus.logs.state(topology.gen_requests)).messages == 0

    await eventually(gone, within_s=AT_ONCE_S)
    async with bus.queues.open(topology.gen_requests, topology.gen_consumer("solver")) as queue:
        assert await queue.fetch(1, wait=False) == []


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
    bounded, unbounded = make_topology("bounded"), make_topology(
        "unbounded", max_episodes_bytes=0, max_metrics_bytes=0, max_events_bytes=0, max_dead_letters_bytes=0,
        max_blobs_bytes=0, max_members_bytes=0,
    )  # fmt: skip
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


async def test_a_full_log_pushes_back_for_split_messages_too(nats_server: EmbeddedServer) -> None:
    topology = make_topology(max_episodes_bytes=2_000_000)
    async with NatsBus.connect(nats_server.options, topology, producer="test") as bus:
        await bus.ensure()
        big = make_episode(prompt="x" * 1_200_000)
        first = await bus.publish(topology.episode("math"), big, msg_id="a")
        with pytest.raises(BusError, match="full: maximum bytes"):
            await bus.publish(topology.episode("math"), big, msg_id="b", deadline_s=2.0)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(bus.publish(topology.episode("math"), big, msg_id="b", deadline_s=None))
            await eventually(lambda: any("full" in reason for reason in bus.counters))
            await bus.logs.purge(topology.episodes, below_sequence=first.sequence + 1)
        assert not waiting.result().duplicate
