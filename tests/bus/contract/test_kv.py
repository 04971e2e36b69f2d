"""The bucket: compare-and-set, expiry, leases, watches."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

import pytest

from astraflow.bus import Bus, KvUpdate, Topology, wiring
from astraflow.errors import BusError, ConfigError, FencedError, MessageError, UnreadableValueError
from astraflow.messages import Drain, Lease, Ledger, Member, MemberState, encode
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
    assert await bus.kv.get(wiring.LEASE.key("a")) is None
    revision = await bus.kv.put(wiring.LEASE.key("a"), _lease("x"))
    entry = await bus.kv.get(wiring.LEASE.key("a"))
    assert entry is not None
    assert (entry.key, entry.message, entry.revision) == ("lease.a", _lease("x"), revision)
    await bus.kv.delete(wiring.LEASE.key("a"))
    assert await bus.kv.get(wiring.LEASE.key("a")) is None
    await bus.kv.delete("never-there")


async def test_only_one_of_many_creates_wins(bus: Bus, topology: Topology, place: Place) -> None:
    won, lost = [], []

    async def create(name: str) -> None:
        async with place.connect(topology, producer=name) as other:
            try:
                won.append(await other.kv.put(wiring.LEASE.key("a"), _lease(name), expected_revision=0))
            except FencedError:
                lost.append(name)

    async with asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(create(f"p{number}"))
    assert (len(won), len(lost)) == (1, 7)


async def test_an_update_of_an_old_revision_is_fenced(bus: Bus) -> None:
    first = await bus.kv.put(wiring.LEASE.key("a"), _lease("x"), expected_revision=0)
    second = await bus.kv.put(wiring.LEASE.key("a"), _lease("x", 2), expected_revision=first)
    with pytest.raises(FencedError, match=f"expected sequence {first}"):
        await bus.kv.put(wiring.LEASE.key("a"), _lease("y"), expected_revision=first)
    entry = await bus.kv.get(wiring.LEASE.key("a"))
    assert entry is not None
    assert (entry.message, entry.revision) == (_lease("x", 2), second)


async def test_a_key_that_was_deleted_or_expired_can_be_created_again(bus: Bus) -> None:
    await bus.kv.put(wiring.LEASE.key("a"), _lease("x"), expected_revision=0)
    await bus.kv.delete(wiring.LEASE.key("a"))
    await bus.kv.put(wiring.LEASE.key("a"), _lease("y"), expected_revision=0, ttl_s=1)
    async for update in bus.kv.watch(wiring.LEASE.key("a")):
        if update.key and update.message is None:
            break
    assert await bus.kv.get(wiring.LEASE.key("a")) is None
    revision = await bus.kv.put(wiring.LEASE.key("a"), _lease("z"), expected_revision=0)
    with pytest.raises(FencedError):
        await bus.kv.put(wiring.LEASE.key("a"), _lease("w"), expected_revision=0)
    assert (await bus.kv.entries(wiring.LEASE.prefix))[wiring.LEASE.key("a")].revision == revision


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
    first = await bus.kv.put(wiring.LEASE.key("a"), _lease("x"), expected_revision=0, ttl_s=3)
    renewed = await bus.kv.put(wiring.LEASE.key("a"), _lease("x"), expected_revision=first, ttl_s=600)
    updates = bus.kv.watch("any.")
    await _until_caught_up(updates)
    await bus.kv.put("any.b", _lease("b"), ttl_s=4)  # when this has expired, the first would have too
    while (await anext(updates)).message is not None:
        pass
    entry = await bus.kv.get(wiring.LEASE.key("a"))
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


async def test_a_watch_waits_for_a_bucket_that_is_not_there_yet(topology: Topology, place: Place) -> None:
    async with place.connect(topology, producer="early") as early, asyncio.TaskGroup() as group:
        seen = group.create_task(_until_caught_up(early.kv.watch("")))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not seen.done()
        await early.ensure()
        async with asyncio.timeout(AT_ONCE_S):
            assert await seen == {}


async def test_prefixes_are_whole_tokens(bus: Bus) -> None:
    for key in ("plain", "runner", "some.solver", "some.solver-2", "some.solver.sub"):
        await bus.kv.put(key, _lease(key))
    assert set(await bus.kv.entries("plain")) == {"plain"}
    assert set(await bus.kv.entries("some.solver")) == {"some.solver"}
    assert set(await bus.kv.entries("some.")) == {"some.solver", "some.solver-2", "some.solver.sub"}
    assert len(await bus.kv.entries("")) == 5


async def test_a_malformed_value_is_skipped_by_lists_and_named_by_get(
    bus: Bus, topology: Topology, place: Place
) -> None:
    await place.store_raw(bus, topology.kv_subject("some.bad"), b"garbage", msg_id="bad")
    await bus.kv.put("some.good", _lease("1"))
    assert set(await bus.kv.entries("some.")) == {"some.good"}
    assert bus.counters["dead_letters.KV"] == 1
    with pytest.raises(UnreadableValueError) as caught:
        await bus.kv.get("some.bad")
    assert (caught.value.key, caught.value.revision) == ("some.bad", 1)


async def test_a_watch_tells_of_a_value_that_cant_be_read_and_of_its_successor(
    bus: Bus, topology: Topology, place: Place
) -> None:
    key = wiring.LEASE.key("a")
    async with aclosing(bus.kv.watch(key)) as updates:
        assert await _until_caught_up(updates) == {}
        await bus.kv.put(key, _lease("x"))
        assert (await anext(updates)).message == _lease("x")
        other = encode(Ledger(policy="x", counts={}), id="other", run=topology.run, producer="x")
        await place.store_raw(bus, topology.kv_subject(key), other, msg_id="bad")
        bad = await anext(updates)
        assert (bad.key, bad.message, bad.revision, bad.unreadable) == (key, None, 2, True)
        with pytest.raises(FencedError):
            await bus.kv.put(key, _lease("y"), expected_revision=1)
        await bus.kv.put(key, _lease("y"), expected_revision=2)
        good = await anext(updates)
        assert (good.message, good.unreadable) == (_lease("y"), False)


def _member(actor: str, waits_for: str = "") -> Member:
    return Member(
        actor=actor, role="rollout", node="n", incarnation="i", pid=1, state=MemberState.READY, waits_for=waits_for
    )


async def test_keys_of_others_are_apart_and_are_read_with_the_rest(bus: Bus, topology: Topology) -> None:
    member, drain, lease = wiring.MEMBER.key("a"), wiring.DRAIN.key("a"), wiring.LEASE.key("a")
    await bus.kv.put(member, _member("a"))
    await bus.kv.put(drain, Drain(target="a", requested_at=0.0), ttl_s=60)
    await bus.kv.put(lease, _lease("x"))
    assert set(await bus.kv.entries("")) == {member, drain, lease}
    assert set(await bus.kv.entries(wiring.MEMBER.prefix)) == {member}
    assert (await bus.logs.state(topology.members)).messages == 2
    assert (await bus.logs.state(topology.kv)).messages == 1
    with pytest.raises(FencedError):
        await bus.kv.put(member, _member("a"), expected_revision=0)


async def test_a_member_that_goes_is_told_once_and_can_come_again(bus: Bus) -> None:
    key = wiring.MEMBER.key("a")
    for prefix in (wiring.MEMBER.prefix, ""):
        async with aclosing(bus.kv.watch(prefix)) as updates:
            assert await _until_caught_up(updates) == {}
            for ttl_s in (1, 60):  # it expires, it is deleted
                revision = await bus.kv.put(key, _member("a"), expected_revision=0, ttl_s=ttl_s)
                assert (await anext(updates)).revision == revision
                if ttl_s == 1:
                    await bus.kv.put(key, _member("a"), expected_revision=revision, ttl_s=ttl_s)
                    assert (await anext(updates)).message == _member("a")
                else:
                    await bus.kv.delete(key)
                async with asyncio.timeout(AT_ONCE_S):
                    gone = await anext(updates)
                assert (gone.key, gone.message, gone.unreadable) == (key, None, False)
                assert await bus.kv.get(key) is None
    assert await bus.kv.entries("") == {}


async def test_a_record_over_what_its_stream_takes_is_refused(bus: Bus, topology: Topology) -> None:
    big = _member("a", "x" * topology.limits.max_member_bytes)
    with pytest.raises(BusError, match="refused"):
        await bus.kv.put(wiring.MEMBER.key("a"), big)
    assert await bus.kv.entries("") == {}


async def test_texts_for_people_come_out_fit_to_print(bus: Bus) -> None:
    key = wiring.MEMBER.key("a")
    await bus.kv.put(key, _member("a", "one\x1b[2Jtwo\nthree"))
    entry = await bus.kv.get(key)
    assert entry is not None
    assert entry.message.waits_for == "one\ufffd[2Jtwo three"


async def test_bad_keys_and_huge_values_are_refused(bus: Bus) -> None:
    with pytest.raises(ConfigError):
        await bus.kv.put("a b", _lease("x"))
    with pytest.raises(MessageError, match="over max_message_bytes"):
        await bus.kv.put(wiring.LEDGER.key("a"), Ledger(policy="x" * 600_000, counts={}))


async def test_a_value_tells_how_long_it_has_been_there(bus: Bus) -> None:
    await bus.kv.put(wiring.LEASE.key("a"), _lease("x"))

    async def age() -> float:
        async with aclosing(bus.kv.watch(wiring.LEASE.prefix)) as updates:
            return (await anext(updates)).age_s

    assert await age() < AT_ONCE_S
    await eventually(lambda: _over(age, 0.3))
    async with aclosing(bus.kv.watch(wiring.LEASE.prefix)) as updates:
        assert (await anext(updates)).age_s > 0.3
        assert (await anext(updates)).key == ""
        await bus.kv.put(wiring.LEASE.key("a"), _lease("y"))
        assert (await anext(updates)).age_s == 0.0, "it came now"


async def _over(age: Callable[[], Awaitable[float]], least_s: float) -> bool:
    return await age() > least_s
