"""Logs: order, cursors that are verified, outages."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import pytest

from astraflow.bus import Bus, Cursor, LogEntry, Topology
from astraflow.errors import BusError, CursorError
from tests.bus.contract.place import Place
from tests.support import make_episode, make_topology


async def _append(bus: Bus, numbers: range, env: str = "math") -> None:
    for number in numbers:
        await bus.publish(bus.topology.episode(env), make_episode(str(number), env), msg_id=f"{env}/{number}")


async def _all(bus: Bus, **options: object) -> list[LogEntry]:
    return [entry async for entry in bus.logs.read(bus.topology.episodes, follow=False, **options)]  # type: ignore[arg-type]


def _ids(entries: list[LogEntry]) -> list[str]:
    return [entry.envelope.id for entry in entries]


async def test_entries_come_in_order_with_their_positions(bus: Bus, topology: Topology) -> None:
    await _append(bus, range(3))
    entries = await _all(bus)
    assert [(entry.message.task_id, entry.sequence, entry.subject) for entry in entries] == [
        (str(n), n + 1, topology.episode("math")) for n in range(3)
    ]
    state = await bus.logs.state(topology.episodes)
    assert entries[1].cursor == Cursor(state.incarnation, 2, "math/1")
    assert (state.first_sequence, state.last_sequence, state.messages) == (1, 3, 3)


async def test_an_empty_log_ends_at_once_without_follow(bus: Bus, topology: Topology) -> None:
    assert await _all(bus) == []
    assert await _all(bus, subject=topology.episode("code")) == []
    state = await bus.logs.state(topology.episodes)
    assert (state.first_sequence, state.last_sequence) == (1, 0)


async def test_a_log_without_follow_ends_at_its_end_for_every_start(bus: Bus, topology: Topology) -> None:
    await _append(bus, range(4))
    await _append(bus, range(2), "code")
    assert len(await _all(bus, start="new")) == 0
    assert _ids(await _all(bus, start=3)) == ["math/2", "math/3", "code/0", "code/1"]
    assert _ids(await _all(bus, subject=topology.episode("math"))) == [f"math/{n}" for n in range(4)]
    assert _ids(await _all(bus, subject=topology.episode("code"), start=6)) == ["code/1"]
    assert await _all(bus, subject=topology.episode("math"), start=5) == []
    assert await _all(bus, start=100) == []


async def test_a_thousand_entries_come_once_each(bus: Bus) -> None:
    async with asyncio.TaskGroup() as group:
        for start in range(0, 1200, 100):
            group.create_task(_append(bus, range(start, start + 100)))
    entries = await _all(bus)
    assert [entry.sequence for entry in entries] == list(range(1, 1201))
    assert len(set(_ids(entries))) == 1200


async def test_a_backlog_larger_than_a_reader_buffers_comes_whole(bus: Bus, topology: Topology) -> None:
    for number in range(40):  # 16 MB, four times what the reader asks for at once
        episode = make_episode(str(number), prompt="x" * 400_000)
        await bus.publish(topology.episode("math"), episode, msg_id=str(number))
    assert [entry.message.task_id for entry in await _all(bus)] == [str(number) for number in range(40)]


async def test_follow_tells_of_new_entries_at_once(bus: Bus, topology: Topology) -> None:
    await _append(bus, range(1))
    entries = bus.logs.read(topology.episodes)
    assert (await anext(entries)).message.task_id == "0"
    async with asyncio.TaskGroup() as group:
        following = group.create_task(anext(entries))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        start = asyncio.get_running_loop().time()
        await _append(bus, range(1, 2))
        assert (await following).message.task_id == "1"
        assert asyncio.get_running_loop().time() - start < 1.0
    await entries.aclose()


async def test_a_cursor_continues_behind_its_entry(bus: Bus) -> None:
    await _append(bus, range(5))
    entries = await _all(bus)
    assert _ids(await _all(bus, cursor=entries[2].cursor)) == ["math/3", "math/4"]
    assert await _all(bus, cursor=entries[4].cursor) == []
    start = Cursor(entries[0].cursor.incarnation, 0, "")
    assert len(await _all(bus, cursor=start)) == 5


async def test_a_purge_up_to_the_cursor_keeps_it_valid_and_one_beyond_breaks_it(bus: Bus, topology: Topology) -> None:
    await _append(bus, range(5))
    entries = await _all(bus)
    cursor = entries[2].cursor
    assert await bus.logs.purge(topology.episodes, below_sequence=cursor.sequence) == 2
    assert _ids(await _all(bus, cursor=cursor)) == ["math/3", "math/4"]
    await bus.logs.purge(topology.episodes, below_sequence=cursor.sequence + 1)
    with pytest.raises(CursorError, match=r"cursor 3 .*is below the log, the log has 4 to 5: it was purged"):
        await _all(bus, cursor=cursor)
    with pytest.raises(CursorError, match=r"cursor 0 \(start\)"):
        await _all(bus, cursor=Cursor(cursor.incarnation, 0, ""))


async def test_a_cursor_beyond_the_log_names_both(bus: Bus) -> None:
    await _append(bus, range(2))
    cursor = Cursor((await _all(bus))[0].cursor.incarnation, 9, "math/8")
    with pytest.raises(CursorError, match=r"cursor 9 \(math/8\).*beyond the log, the log has 1 to 2.*restore"):
        await _all(bus, cursor=cursor)


async def test_a_cursor_whose_message_differs_names_both(bus: Bus) -> None:
    await _append(bus, range(2))
    cursor = Cursor((await _all(bus))[0].cursor.incarnation, 2, "other")
    with pytest.raises(CursorError, match=r"cursor 2 \(other\).*has 'math/1' there"):
        await _all(bus, cursor=cursor)


async def test_a_malformed_entry_is_skipped_counted_and_kept_as_a_dead_letter(
    bus: Bus, topology: Topology, place: Place
) -> None:
    await _append(bus, range(1))
    await place.store_raw(bus, topology.episode("math"), b"garbage", msg_id="bad")
    await _append(bus, range(1, 2))
    assert _ids(await _all(bus)) == ["math/0", "math/1"]
    assert _ids(await _all(bus)) == ["math/0", "math/1"]  # a second reader reports the same one
    (letter,) = await bus.dead_letters.read()
    assert (letter.sequence, letter.data) == (2, b"garbage")
    assert bus.counters["dead_letters.EPISODES"] == 2


async def test_big_entries_are_read_whole_alone_and_by_sequence(bus: Bus, topology: Topology) -> None:
    sizes = [10, 600_000, 2_000_000]
    for number, size in enumerate(sizes):
        episode = make_episode(str(number), prompt="x" * size)
        await bus.publish(topology.episode("math"), episode, msg_id=str(number))
    entries = await _all(bus)
    assert [len(entry.message.prompt) for entry in entries] == sizes
    one = await bus.logs.entry(topology.episodes, entries[1].sequence)
    last = await bus.logs.last(topology.episodes, topology.episode("math"))
    assert one is not None
    assert last is not None
    assert (one, last) == (entries[1], entries[2])
    assert _ids(await _all(bus, cursor=one.cursor)) == ["2"]


async def test_single_entries_that_do_not_exist_are_none(bus: Bus, topology: Topology) -> None:
    assert await bus.logs.entry(topology.episodes, 1) is None
    assert await bus.logs.last(topology.episodes, topology.episode("math")) is None


async def test_the_state_of_a_missing_stream_is_a_bus_error(place: Place) -> None:
    async with place.connect(make_topology("nothing"), producer="test") as bus:
        with pytest.raises(BusError, match="has the run been set up"):
            await bus.logs.state(bus.topology.episodes)


async def test_a_stream_with_other_settings_is_refused_with_both_values(place: Place) -> None:
    async with place.connect(make_topology(max_tasks=5), producer="one") as one:
        await one.ensure()
        await one.ensure()
    async with place.connect(make_topology(max_tasks=6), producer="two") as two:
        with pytest.raises(
            BusError, match=r"AF_test_local_TASKS has max_msgs_per_subject=5, expected 6: .*an earlier version began"
        ):
            await two.ensure()


async def test_a_slow_reader_passes_over_what_was_purged_meanwhile(bus: Bus, topology: Topology) -> None:
    await _append(bus, range(1))
    entries = bus.logs.read(topology.episodes)
    assert (await anext(entries)).sequence == 1
    await _append(bus, range(1, 3000))
    await bus.logs.purge(topology.episodes, below_sequence=2990)
    rest = [entry.sequence async for entry in _until(entries, 3000)]
    assert rest == sorted(set(rest))
    assert rest[-11:] == list(range(2990, 3001))
    await entries.aclose()


async def _until(entries: AsyncGenerator[LogEntry, None], last: int) -> AsyncIterator[LogEntry]:
    async for entry in entries:
        yield entry
        if entry.sequence == last:
            return


async def test_the_next_entry_of_a_subject_is_found_from_anywhere(bus: Bus, topology: Topology) -> None:
    await _append(bus, range(2))
    await _append(bus, range(2), "code")
    found = await bus.logs.next(topology.episodes, topology.episode("code"), start=1)
    assert found is not None
    assert (found.sequence, found.envelope.id) == (3, "code/0")
    assert await bus.logs.next(topology.episodes, topology.episode("math"), start=3) is None
    assert await bus.logs.last_sequence(topology.episodes, topology.episode("math")) == 2
    assert await bus.logs.last_sequence(topology.decisions, topology.decision()) == 0


async def test_a_purge_of_one_subject_leaves_the_others(bus: Bus, topology: Topology) -> None:
    await _append(bus, range(2))
    await _append(bus, range(2), "code")
    assert await bus.logs.purge(topology.episodes, below_sequence=9, subject=topology.episode("math")) == 2
    assert _ids(await _all(bus)) == ["code/0", "code/1"]
    assert await bus.logs.purge(topology.episodes, below_sequence=1) == 0
