"""Publishing: once in the log, whatever happens on the wire."""

import asyncio
from pathlib import Path

import pytest

from astraflow.bus import Bus, Topology
from astraflow.errors import BusError, ConfigError, FencedError, MessageError
from astraflow.messages import Decision, DecisionKind, GenRequest, Sampling, array_of
from tests.bus.contract.place import Place, a_place
from tests.support import AT_ONCE_S, eventually, make_episode, make_task, make_topology


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


async def test_the_same_id_is_stored_once_and_says_so(bus: Bus, topology: Topology) -> None:
    first = await bus.publish(topology.episode("math"), make_episode(), msg_id="a")
    again = await bus.publish(topology.episode("math"), make_episode(), msg_id="a")
    assert (first.sequence, first.duplicate) == (1, False)
    assert (again.sequence, again.duplicate) == (1, True)
    assert (await bus.logs.state(topology.episodes)).messages == 1
    assert bus.counters["publish.duplicates"] == 1


async def test_a_full_queue_pushes_back_until_there_is_room(place: Place) -> None:
    topology = make_topology(max_tasks=2)
    async with place.connect(topology, producer="test") as bus:
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


async def test_waiting_for_a_full_queue_does_not_hold_up_others(place: Place) -> None:
    topology = make_topology(max_tasks=1)
    big = make_task(payload={"text": "x" * 400_000})
    async with place.connect(topology, producer="test") as bus:
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


async def test_a_missing_stream_fails_at_the_deadline(place: Place, topology: Topology) -> None:
    async with place.connect(topology, producer="test") as bus:
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


async def test_over_the_limit_of_parts_is_a_message_error(place: Place) -> None:
    topology = make_topology(max_message_bytes=1000)
    async with place.connect(topology, producer="test") as bus:
        await bus.ensure()
        with pytest.raises(MessageError, match="at most 999000 fit"):
            await bus.publish(topology.episode("math"), make_episode(prompt="x" * 1_000_000), msg_id="a")


async def test_a_ttl_is_rounded_up_and_ends_the_message(bus: Bus, topology: Topology) -> None:
    await bus.publish(topology.gen("solver"), _request(), msg_id="a", ttl_s=0.2)
    assert (await bus.queues.depths())["gen.solver"] == 1

    async def gone() -> bool:
        return (await bus.logs.state(topology.gen_requests)).messages == 0

    await eventually(gone, within_s=AT_ONCE_S)
    async with bus.queues.open(topology.gen_requests, topology.gen_consumer("solver")) as queue:
        assert await queue.fetch(1, wait=False) == []


async def test_a_full_log_pushes_back_for_split_messages_too(place: Place) -> None:
    topology = make_topology(max_episodes_bytes=2_000_000)
    async with place.connect(topology, producer="test") as bus:
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


async def test_a_log_without_push_back_lets_the_oldest_go(place: Place) -> None:
    topology = make_topology(max_events_bytes=20_000)
    async with place.connect(topology, producer="test") as bus:
        await bus.ensure()
        for number in range(50):
            await bus.event("info", "e", "x" * 1000, number=number)
        numbers = [entry.message.fields["number"] async for entry in bus.logs.read(topology.events, follow=False)]
        assert numbers == list(range(50 - len(numbers), 50))
        assert 5 < len(numbers) < 30


async def test_a_relayed_message_is_as_its_producer_made_it(bus: Bus, topology: Topology, tmp_path: Path) -> None:
    await bus.publish(topology.episode("math"), make_episode("a"), msg_id="a")
    entry = await bus.logs.last(topology.episodes, topology.episode("math"))
    assert entry is not None
    async with a_place(tmp_path / "there") as elsewhere, elsewhere.connect(topology, producer="relay") as there:
        await there.ensure()
        ack = await there.relay(topology.episode("math"), entry.envelope)
        assert (await there.relay(topology.episode("math"), entry.envelope)).duplicate
        assert ack.sequence == 1
        relayed = await there.logs.entry(topology.episodes, 1)
        assert relayed is not None
        assert relayed.envelope == entry.envelope


@pytest.mark.parametrize("size", [1, 600_000])
async def test_a_message_whose_id_a_stranger_has_taken_is_stored_beside_it(
    bus: Bus, topology: Topology, place: Place, size: int
) -> None:
    await place.store_raw(bus, topology.episode("math"), b"squatter", msg_id="a")
    ack = await bus.publish(topology.episode("math"), make_episode("mine", prompt="x" * size), msg_id="a")
    assert not ack.duplicate
    entries = [entry async for entry in bus.logs.read(topology.episodes, follow=False)]
    assert [(entry.message.task_id, entry.sequence) for entry in entries] == [("mine", ack.sequence)]
