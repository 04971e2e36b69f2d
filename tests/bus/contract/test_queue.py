"""Work queues: redelivery, free slots, cancellation, malformed and big messages, outages."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from astraflow.bus import Bus, Topology, WorkQueue, wiring
from astraflow.messages import Ledger, encode
from tests.bus.contract.place import Place
from tests.support import AT_ONCE_S, eventually, make_task, make_topology

BIG = "x" * 1_500_000


@pytest.fixture
async def queue(bus: Bus, topology: Topology) -> AsyncIterator[WorkQueue]:
    async with bus.queues.open(topology.tasks, topology.task_consumer("math")) as opened:
        yield opened


@pytest.fixture
async def quick(place: Place) -> AsyncIterator[Bus]:
    """A bus whose ack wait is one second."""
    topology = make_topology(ack_wait_s=1.0)
    async with place.connect(topology, producer="quick") as bus:
        await bus.ensure()
        yield bus


async def _fill(bus: Bus, count: int, env: str = "math") -> None:
    for index in range(count):
        await bus.publish(bus.topology.task(env), make_task(str(index), env), msg_id=f"{env}/{index}")


async def test_an_acked_task_is_gone_and_a_naked_one_comes_back_at_once(bus: Bus, queue: WorkQueue) -> None:
    await _fill(bus, 1)
    (first,) = await queue.fetch(1)
    assert (first.attempts, first.message.id, first.envelope.id) == (1, "0", "math/0")
    await first.nak()
    (second,) = await queue.fetch(1)
    assert second.attempts == 2
    await second.ack()
    await eventually(lambda: _depth(bus, 0))
    assert await queue.fetch(1, wait=False) == []


async def test_a_nak_with_a_delay_comes_back_after_it(bus: Bus, queue: WorkQueue) -> None:
    await _fill(bus, 1)
    (first,) = await queue.fetch(1)
    start = asyncio.get_running_loop().time()
    await first.nak(0.3)
    async with asyncio.timeout(AT_ONCE_S):
        await queue.fetch(1)
    assert asyncio.get_running_loop().time() - start > 0.25


async def test_an_unacked_task_is_redelivered_after_the_ack_wait(quick: Bus) -> None:
    topology = quick.topology
    await _fill(quick, 1)
    async with quick.queues.open(topology.tasks, topology.task_consumer("math")) as queue:
        start = asyncio.get_running_loop().time()
        await queue.fetch(1)
        async with asyncio.timeout(AT_ONCE_S):
            (again,) = await queue.fetch(1)
        assert again.attempts == 2
        assert asyncio.get_running_loop().time() - start > 0.9


async def test_keep_alive_holds_a_task_past_its_ack_wait(quick: Bus) -> None:
    topology = quick.topology
    await _fill(quick, 1)
    async with quick.queues.open(topology.tasks, topology.task_consumer("math")) as queue:
        (held,) = await queue.fetch(1)
        async with held.keep_alive():
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(2.5):
                    await queue.fetch(1)
        await held.ack()
        await eventually(lambda: _depth(quick, 0))


async def test_in_progress_starts_the_ack_wait_anew(quick: Bus) -> None:
    topology = quick.topology
    await _fill(quick, 1)
    async with quick.queues.open(topology.tasks, topology.task_consumer("math")) as queue:
        start = asyncio.get_running_loop().time()
        (held,) = await queue.fetch(1)
        await asyncio.sleep(0.6)
        await held.in_progress()
        async with asyncio.timeout(AT_ONCE_S):
            (again,) = await queue.fetch(1)
        assert asyncio.get_running_loop().time() - start > 1.5
        assert again.attempts == 2
        await held.ack()  # the first one's ack counts too: the work is done
        await eventually(lambda: _depth(quick, 0))


async def test_what_comes_back_comes_before_what_is_new(bus: Bus, queue: WorkQueue) -> None:
    await _fill(bus, 3)
    (first,) = await queue.fetch(1)
    await first.nak()
    again = [delivery for _ in range(3) for delivery in await queue.fetch(1)]
    assert sorted((d.message.id, d.attempts) for d in again) == [("0", 2), ("1", 1), ("2", 1)]


async def test_depths_count_what_is_held_and_undelivered_only_what_is_not(bus: Bus, queue: WorkQueue) -> None:
    await _fill(bus, 3)
    held = await queue.fetch(2)
    assert (await bus.queues.depths())["task.math"] == 3
    assert (await bus.queues.undelivered())["task.math"] == 1
    await held[0].ack()
    await eventually(lambda: _depth(bus, 2))
    await held[1].nak(60.0)
    assert (await bus.queues.undelivered())["task.math"] == 1
    assert [delivery.message.id for delivery in await queue.fetch(9, wait=False)] == ["2"]


async def test_a_rejected_task_is_a_dead_letter_and_gone(bus: Bus, queue: WorkQueue) -> None:
    await _fill(bus, 1)
    (delivery,) = await queue.fetch(1)
    await delivery.reject("nobody can")
    (letter,) = await bus.dead_letters.read()
    assert (letter.reason, letter.sequence) == ("nobody can", 1)
    await eventually(lambda: _depth(bus, 0))


async def test_fetch_returns_what_is_there_and_no_more_than_asked(bus: Bus, queue: WorkQueue) -> None:
    await _fill(bus, 5)
    assert len(await queue.fetch(3)) == 3
    assert len(await queue.fetch(16)) == 2
    assert await queue.fetch(16, wait=False) == []


async def test_nothing_is_pulled_while_nobody_fetches(bus: Bus, topology: Topology, queue: WorkQueue) -> None:
    await _fill(bus, 1)
    (first,) = await queue.fetch(8)  # asked for eight, got one
    await _fill(bus, 3, env="math")  # ids 1 and 2 are new
    async with bus.queues.open(topology.tasks, topology.task_consumer("math")) as other:
        assert {delivery.attempts for delivery in await other.fetch(8)} == {1}
    await first.ack()


async def test_a_waiting_fetch_gets_a_new_task_at_once(
    bus: Bus, queue: WorkQueue, monkeypatch: pytest.MonkeyPatch, place: Place
) -> None:
    monkeypatch.setattr("astraflow.bus.queue.EXPIRES_S", 4 * AT_ONCE_S)  # what it doesn't wait for
    async with asyncio.TaskGroup() as group:
        fetch = group.create_task(queue.fetch(4))
        await eventually(lambda: place.someone_waits(bus, queue.stream, queue.consumer))
        await _fill(bus, 1)
        async with asyncio.timeout(AT_ONCE_S):
            assert len(await fetch) == 1


async def test_a_cancelled_fetch_leaves_nothing_behind(bus: Bus, topology: Topology, queue: WorkQueue) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await queue.fetch(8)
    async with bus.queues.open(topology.tasks, topology.task_consumer("math")) as other, asyncio.TaskGroup() as group:
        fetch = group.create_task(other.fetch(1))
        await _fill(bus, 1)
        async with asyncio.timeout(AT_ONCE_S):
            (got,) = await fetch
    assert got.attempts == 1


async def test_what_arrives_during_a_cancel_is_handed_back_at_once(bus: Bus, topology: Topology) -> None:
    for number in range(20):  # cancel at different moments around the arrival
        async with bus.queues.open(topology.tasks, topology.task_consumer("math")) as one:
            await bus.publish(topology.task("math"), make_task(str(number)), msg_id=str(number))
            async with asyncio.TaskGroup() as group:
                fetch = group.create_task(one.fetch(1))
                for _ in range(number):
                    await asyncio.sleep(0)
                fetch.cancel()
                try:
                    got = await fetch
                except asyncio.CancelledError:
                    got = []
            async with asyncio.timeout(AT_ONCE_S):
                got = got or await one.fetch(1)
            assert got[0].message.id == str(number)
            await got[0].ack()


async def test_a_cancelled_worker_hands_back_what_is_under_way(bus: Bus, topology: Topology, place: Place) -> None:
    async def work() -> None:
        async with bus.queues.open(topology.tasks, topology.task_consumer("math")) as queue:
            await queue.fetch(4)

    for number in range(10):
        async with asyncio.TaskGroup() as group:
            worker = group.create_task(work())
            await asyncio.sleep(0.002 * number)
            await place.store_raw(bus, topology.task("math"), _encoded(number), msg_id=f"t{number}")
            worker.cancel()
        if not worker.cancelled():  # it got the task first, and ended holding it
            continue
        async with bus.queues.open(topology.tasks, topology.task_consumer("math")) as queue, asyncio.timeout(AT_ONCE_S):
            (got,) = await queue.fetch(1)
            assert got.message.id == str(number)
            await got.ack()


async def test_concurrent_fetches_take_turns(bus: Bus, queue: WorkQueue) -> None:
    await _fill(bus, 8)
    async with asyncio.TaskGroup() as group:
        fetches = [group.create_task(queue.fetch(1)) for _ in range(8)]
    assert {fetch.result()[0].message.id for fetch in fetches} == {str(n) for n in range(8)}


async def test_eval_tasks_have_their_own_consumer(bus: Bus, topology: Topology, queue: WorkQueue) -> None:
    await bus.publish(topology.eval_task("math"), make_task("e"), msg_id="e")
    assert await queue.fetch(1, wait=False) == []
    async with bus.queues.open(topology.tasks, topology.eval_consumer("math")) as evals:
        assert (await evals.fetch(1))[0].message.id == "e"


async def test_a_malformed_task_becomes_a_dead_letter_and_is_never_returned(
    bus: Bus, topology: Topology, queue: WorkQueue, place: Place
) -> None:
    await place.store_raw(bus, topology.task("math"), b"\xc1garbage", msg_id="bad")
    await _fill(bus, 1)
    deliveries = await queue.fetch(4)
    assert [delivery.message.id for delivery in deliveries] == ["0"]
    (letter,) = await bus.dead_letters.read()
    assert (letter.subject, letter.sequence, letter.data) == (topology.task("math"), 1, b"\xc1garbage")
    assert "can't be decoded" in letter.reason
    assert bus.counters["dead_letters.TASKS"] == 1
    await deliveries[0].ack()
    await eventually(lambda: _depth(bus, 0))


async def test_a_big_task_is_whole_and_its_parts_go_with_the_ack(
    bus: Bus, topology: Topology, queue: WorkQueue
) -> None:
    await bus.publish(topology.task("math"), make_task("a", payload={"text": BIG}), msg_id="a")
    await bus.publish(topology.task("math"), make_task("b", payload={"text": BIG}), msg_id="b")  # the same parts
    (first,) = await queue.fetch(1)
    await first.nak()
    got = {}
    while len(got) < 2:
        (delivery,) = await queue.fetch(1)
        got[delivery.message.id] = delivery.message.payload["text"]
        await delivery.ack()
    assert got == {"a": BIG, "b": BIG}
    assert (await bus.logs.state(topology.blobs)).messages == 0


async def test_a_big_task_without_its_parts_is_a_dead_letter(bus: Bus, topology: Topology, queue: WorkQueue) -> None:
    await bus.publish(topology.task("math"), make_task("a", payload={"text": BIG}), msg_id="a")
    await bus.logs.purge(topology.blobs, below_sequence=1000)
    assert await queue.fetch(1, wait=False) == []
    (letter,) = await bus.dead_letters.read()
    assert "can't be joined" in letter.reason


async def test_two_runs_on_one_server_do_not_see_each_other(place: Place) -> None:
    async with (
        place.connect(make_topology("one"), producer="test") as one,
        place.connect(make_topology("two"), producer="test") as two,
    ):
        await one.ensure()
        await two.ensure()
        await _fill(one, 1)
        await one.kv.put(wiring.LEDGER.key("x"), Ledger(policy="x", counts={"issued": 1}), expected_revision=0)
        assert await two.kv.entries("") == {}
        assert (await two.queues.depths())["task.math"] == 0
        async with two.queues.open(two.topology.tasks, two.topology.task_consumer("math")) as queue:
            assert await queue.fetch(1, wait=False) == []


async def test_two_pools_share_a_queue_without_overlap(bus: Bus, topology: Topology, place: Place) -> None:
    await _fill(bus, 40)
    async with place.connect(topology, producer="other") as other:
        got: list[str] = []

        async def work(source: Bus) -> None:
            async with source.queues.open(topology.tasks, topology.task_consumer("math")) as queue:
                while deliveries := await queue.fetch(3, wait=False):
                    got.extend(delivery.message.id for delivery in deliveries)
                    for delivery in deliveries:
                        await delivery.ack()

        async with asyncio.TaskGroup() as group:
            group.create_task(work(bus))
            group.create_task(work(other))
    assert sorted(got, key=int) == [str(n) for n in range(40)]


async def _depth(bus: Bus, expected: int) -> bool:
    return (await bus.queues.depths())["task.math"] == expected


def _encoded(number: int) -> bytes:
    return encode(make_task(str(number)), id=str(number))
