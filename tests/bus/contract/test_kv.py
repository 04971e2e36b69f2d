"""The bucket: compare-and-set, expiry, leases, watches."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

import pytest

from astraflow.bus import Bus, KvUpdate, Topology
from astraflow.errors import ConfigError, FencedError, MessageError
from astraflow.messages import Lease, Ledger
from tests.bus.contract.place import Place
from tests.support import AT_ONCE_S, eventually


def _lease(holder: str, epoch: int = 1) -> Lease:
    return Lease(holder=holder, epoch=epoch)


async def _until_caught_up(updates: AsyncGenerator[KvUpdate, None]) -> dict[str, object]:
    seen: dict[str, object] = {}
    async for update in updates:
        if not update.key:
            return seen
        seen[update.key] = update.message
    raise AssertionError("the watch ended")


async def test_put_get_delete(bus: Bus) -> None:
    assert await bus.kv.get("lease.a") is None
    revision = await bus.kv.put("lease.a", _lease("x"))
    entry = await bus.kv.get("lease.a")
    assert entry is not None
    assert (entry.key, entry.message, entry.revision) == ("lease.a", _lease("x"), revision)
    await bus.kv.delete("lease.a")
    assert await bus.kv.get("lease.a") is None
    await bus.kv.delete("never-there")


async def test_only_one_of_many_creates_wins(bus: Bus, topology: Topology, place: Place) -> None:
    won, lost = [], []

    async def create(name: str) -> None:
        async with place.connect(topology, producer=name) as other:
            try:
                won.append(await other.kv.put("lease.a", _lease(name), expected_revision=0))
            except FencedError:
                lost.append(name)

    async with asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(create(f"p{number}"))
    assert (len(won), len(lost)) == (1, 7)


async def test_an_update_of_an_old_revision_is_fenced(bus: Bus) -> None:
    first = await bus.kv.put("lease.a", _lease("x"), expected_revision=0)
    second = await bus.kv.put("lease.a", _lease("x", 2), expected_revision=first)
    with pytest.raises(FencedError, match=f"expected sequence {first}"):
        await bus.kv.put("lease.a", _lease("y"), expected_revision=first)
    entry = await bus.kv.get("lease.a")
    assert entry is not None
    assert (entry.message, entry.revision) == (_lease("x", 2), second)


async def test_a_key_that_was_deleted_or_expired_can_be_created_again(bus: Bus) -> None:
    await bus.kv.put("lease.a", _lease("x"), expected_revision=0)
    await bus.kv.delete("lease.a")
    await bus.kv.put("lease.a", _lease("y"), expected_revision=0, ttl_s=1)
    async for update in bus.kv.watch("lease.a"):
        if update.key and update.message is None:
            break
    assert await bus.kv.get("lease.a") is None
    revision = await bus.kv.put("lease.a", _lease("z"), expected_revision=0)
    with pytest.raises(FencedError):
        await bus.kv.put("lease.a", _lease("w"), expected_revision=0)
    assert (await bus.kv.entries("lease."))["lease.a"].revision == revision


async def test_an_expiry_reaches_the_watcher_when_the_ttl_is_over(bus: Bus) -> None:
    updates = bus.kv.watch("any.")
    await _until_caught_up(updates)
    start = asyncio.get_running_loop().time()
    await bus.kv.put("any.a", _lease("x"), ttl_s=1)
    assert (await anext(updates)).message == _lease("x")
    gone = await anext(updates)
    assert (gone.key, gone.message) == ("any.a", None)
    assert 0.9 < asyncio.get_running_loop().time() - start < AT_ONCE_S


async def test_a_renewed_key_does_not_expire(bus: Bus) -> None:
    first = await bus.kv.put("lease.a", _lease("x"), expected_revision=0, ttl_s=3)
    renewed = await bus.kv.put("lease.a", _lease("x"), expected_revision=first, ttl_s=600)
    updates = bus.kv.watch("any.")
    await _until_caught_up(updates)
    await bus.kv.put("any.b", _lease("b"), ttl_s=4)  # when this has expired, the first would have too
    while (await anext(updates)).message is not None:
        pass
    entry = await bus.kv.get("lease.a")
    assert entry is not None
    assert entry.revision == renewed


async def test_a_watch_tells_values_then_caught_up_then_changes(bus: Bus) -> None:
    await bus.kv.put("some.a", _lease("1"))
    await bus.kv.put("some.b", _lease("2"))
    await bus.kv.put("other.c", _lease("3"))
    updates = bus.kv.watch("some.")
    assert await _until_caught_up(updates) == {"some.a": _lease("1"), "some.b": _lease("2")}
    await bus.kv.put("some.a", _lease("4"))
    assert (await anext(updates)).message == _lease("4")
    await bus.kv.delete("some.b")
    gone = await anext(updates)
    assert (gone.key, gone.message) == ("some.b", None)
    await updates.aclose()


async def test_an_empty_watch_is_caught_up_at_once(bus: Bus) -> None:
    async with asyncio.timeout(AT_ONCE_S):
        assert await _until_caught_up(bus.kv.watch("some.")) == {}


async def test_prefixes_are_whole_tokens(bus: Bus) -> None:
    for key in ("plain", "runner", "some.solver", "some.solver-2", "some.solver.sub"):
        await bus.kv.put(key, _lease(key))
    assert set(await bus.kv.entries("plain")) == {"plain"}
    assert set(await bus.kv.entries("some.solver")) == {"some.solver", "some.solver.sub"}
    assert set(await bus.kv.entries("some.")) == {"some.solver", "some.solver-2", "some.solver.sub"}
    assert len(await bus.kv.entries("")) == 5


async def test_a_malformed_value_is_skipped_by_lists_and_named_by_get(
    bus: Bus, topology: Topology, place: Place
) -> None:
    await place.store_raw(bus, topology.kv_subject("some.bad"), b"garbage", msg_id="bad")
    await bus.kv.put("some.good", _lease("1"))
    assert set(await bus.kv.entries("some.")) == {"some.good"}
    assert bus.counters["dead_letters.KV"] == 1
    with pytest.raises(MessageError):
        await bus.kv.get("some.bad")


async def test_bad_keys_and_huge_values_are_refused(bus: Bus) -> None:
    with pytest.raises(ConfigError):
        await bus.kv.put("a b", _lease("x"))
    with pytest.raises(MessageError, match="over max_message_bytes"):
        await bus.kv.put("ledger.a", Ledger(policy="x" * 600_000, counts={}))


async def test_a_value_tells_how_long_it_has_been_there(bus: Bus) -> None:
    await bus.kv.put("lease.a", _lease("x"))

    async def age() -> float:
        async with aclosing(bus.kv.watch("lease.")) as updates:
            return (await anext(updates)).age_s

    assert await age() < AT_ONCE_S
    await eventually(lambda: _over(age, 0.3))
    async with aclosing(bus.kv.watch("lease.")) as updates:
        assert (await anext(updates)).age_s > 0.3
        assert (await anext(updates)).key == ""
        await bus.kv.put("lease.a", _lease("y"))
        assert (await anext(updates)).age_s == 0.0, "it came now"


async def _over(age: Callable[[], Awaitable[float]], least_s: float) -> bool:
    return await age() > least_s
