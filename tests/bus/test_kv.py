"""The bucket: compare-and-set, expiry, leases, watches."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

from astraflow.bus import Bus, EmbeddedServer, KvUpdate, Topology, wiring
from astraflow.messages import Lease
from tests.support import LIMIT_S, eventually, kill


def _lease(holder: str, epoch: int = 1) -> Lease:
    return Lease(holder=holder, epoch=epoch)


async def _until_caught_up(updates: AsyncGenerator[KvUpdate, None]) -> dict[str, object]:
    seen: dict[str, object] = {}
    async for update in updates:
        if not update.key:
            return seen
        seen[update.key] = update.message
    raise AssertionError("the watch ended")


async def test_a_watch_goes_on_after_kill_9_of_the_server_and_misses_nothing(
    bus: Bus, topology: Topology, nats_server: EmbeddedServer
) -> None:
    await bus.kv.put("some.a", _lease("1"))
    await bus.kv.put("any.b", _lease("b"), ttl_s=1)
    updates = bus.kv.watch("")
    await _until_caught_up(updates)
    await kill(nats_server)
    await nats_server.start()
    await bus.kv.put("some.a", _lease("2"))
    seen: dict[str, object] = {"some.a": _lease("1"), "any.b": _lease("b")}
    async with asyncio.timeout(LIMIT_S):
        async for update in updates:
            seen[update.key] = update.message
            if seen == {"some.a": _lease("2"), "any.b": None}:
                break
    await updates.aclose()


async def test_what_vanished_without_a_marker_is_told_as_deleted_after_a_reconnect(
    bus: Bus, topology: Topology, nats_server: EmbeddedServer
) -> None:
    await bus.kv.put("some.a", _lease("1"))
    updates = bus.kv.watch("some.")
    await _until_caught_up(updates)
    session = await bus.link.session()
    await session.api(f"STREAM.PURGE.{topology.kv}", {"filter": topology.kv_subject("some.a")})
    await kill(nats_server)
    await nats_server.start()
    async with asyncio.timeout(LIMIT_S):
        gone = await anext(updates)
    assert (gone.key, gone.message) == ("some.a", None)
    await updates.aclose()


async def _over(age: Callable[[], Awaitable[float]], least_s: float) -> bool:
    return await age() > least_s


async def test_a_watch_notices_that_the_bucket_was_made_anew_at_once(bus: Bus, topology: Topology) -> None:
    """What is written there then is numbered from 1, below what the watch has read."""
    key, seen = wiring.LEASE.key("x"), list[int | None]()

    async def watch() -> None:
        async for update in bus.kv.watch(wiring.LEASE.prefix):
            if update.key:
                seen.append(update.message.epoch if update.message is not None else None)

    for epoch in range(5):
        await bus.kv.put(key, Lease(holder="h", epoch=epoch))
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(watch())
        await eventually(lambda: seen == [4])
        await (await bus.link.session()).api(f"STREAM.DELETE.{topology.kv_stream(key)}")
        await bus.ensure()
        await eventually(lambda: seen == [4, None])
        await bus.kv.put(key, Lease(holder="h", epoch=9))
        await eventually(lambda: seen == [4, None, 9])
        watching.cancel()
