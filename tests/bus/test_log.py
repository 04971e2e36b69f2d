"""Logs: order, cursors that are verified, outages."""

import asyncio
import shutil

import pytest

from astraflow.bus import Bus, EmbeddedServer, LogEntry, Topology
from astraflow.errors import CursorError
from astraflow.messages import encode
from tests.support import AT_ONCE_S, kill, make_episode, make_task


async def _append(bus: Bus, numbers: range, env: str = "math") -> None:
    for number in numbers:
        await bus.publish(bus.topology.episode(env), make_episode(str(number), env), msg_id=f"{env}/{number}")


async def _all(bus: Bus, **options: object) -> list[LogEntry]:
    return [entry async for entry in bus.logs.read(bus.topology.episodes, follow=False, **options)]  # type: ignore[arg-type]


def _ids(entries: list[LogEntry]) -> list[str]:
    return [entry.envelope.id for entry in entries]


async def test_a_wiped_server_is_noticed_by_the_cursor(
    bus: Bus, topology: Topology, nats_server: EmbeddedServer
) -> None:
    await _append(bus, range(3))
    cursor = (await _all(bus))[0].cursor
    await kill(nats_server)
    shutil.rmtree(nats_server.folder / "store")
    await nats_server.start()
    await _append(bus, range(3))  # the streams were made again on reconnect
    with pytest.raises(CursorError, match="made anew"):
        await _all(bus, cursor=cursor)


async def test_a_reader_of_a_wiped_server_stops_with_an_error(
    bus: Bus, topology: Topology, nats_server: EmbeddedServer
) -> None:
    await _append(bus, range(1))
    entries = bus.logs.read(topology.episodes)
    await anext(entries)
    await kill(nats_server)
    shutil.rmtree(nats_server.folder / "store")
    await nats_server.start()
    with pytest.raises(CursorError, match="made anew"):
        await anext(entries)


async def test_a_reader_goes_on_after_kill_9_of_the_server(
    bus: Bus, topology: Topology, nats_server: EmbeddedServer
) -> None:
    await _append(bus, range(2))
    entries = bus.logs.read(topology.episodes)
    seen = [(await anext(entries)).message.task_id]
    for number in range(2, 5):
        await kill(nats_server)
        await nats_server.start()
        await _append(bus, range(number, number + 1))
        async with asyncio.timeout(AT_ONCE_S):
            seen.append((await anext(entries)).message.task_id)
    seen.append((await anext(entries)).message.task_id)
    assert seen == ["0", "1", "2", "3", "4"]
    await entries.aclose()


async def test_reading_makes_no_consumer(bus: Bus, topology: Topology) -> None:
    await _append(bus, range(3))
    entries = bus.logs.read(topology.episodes)
    await anext(entries)
    session = await bus.link.session()
    assert (await session.api(f"STREAM.INFO.{topology.episodes}"))["state"]["consumer_count"] == 0
    await entries.aclose()


async def test_a_cursor_at_a_message_without_an_id_can_be_resumed(bus: Bus, topology: Topology) -> None:
    session = await bus.link.session()
    data = encode(make_episode(), id="not-in-a-header", run="test", producer="raw")
    await session.request(topology.episode("math"), data)
    (entry,) = [entry async for entry in bus.logs.read(topology.episodes, follow=False)]
    assert [e async for e in bus.logs.read(topology.episodes, cursor=entry.cursor, follow=False)] == []


async def test_what_is_of_another_type_or_run_is_a_dead_letter(bus: Bus, topology: Topology) -> None:
    session = await bus.link.session()
    for message, run in ((make_task(), "test"), (make_episode(), "other")):
        await session.request(topology.episode("math"), encode(message, id="x", run=run, producer="raw"))
    assert [entry async for entry in bus.logs.read(topology.episodes, follow=False)] == []
    reasons = sorted(letter.reason for letter in await bus.dead_letters.read())
    assert reasons == [
        "Episode 'x' in AF_test_local_EPISODES is of run 'other', this is 'test'",
        "Task 'x' is in AF_test_local_EPISODES, expected Episode",
    ]
