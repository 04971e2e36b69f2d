"""Leases on a real server: one holder at a time, whatever stalls, dies or restarts."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from astraflow.actors.base.context import ActorContext
from astraflow.actors.base.lease import HeldLease, lease
from astraflow.actors.base.process_identity import own_process, process_of
from astraflow.bus import EmbeddedServer, wiring
from astraflow.bus.memory import MemoryServer
from astraflow.clock import boottime
from astraflow.errors import FencedError, UnreadableValueError
from astraflow.messages import Event, Lease, MemberState
from tests.actors.contexts import Server, context, with_bus
from tests.bus.raw import store_raw
from tests.support import eventually, kill

LEASE_S = 1.0


@asynccontextmanager
async def contenders(
    server: Server, folder: Path, *, lease_s: float = LEASE_S
) -> AsyncIterator[tuple[ActorContext, ActorContext]]:
    """Two actors that want the same lease."""
    config = with_bus(lease_s=lease_s)
    async with AsyncExitStack() as stack:
        one, two = [
            await stack.enter_async_context(context(server, folder, role="dataflow", name=name, config=config))
            for name in ("dataflow-a-0", "dataflow-b-0")
        ]
        yield one, two


class Contender:
    """An actor that waits for the lease `x` and holds it until it is told to leave."""

    def __init__(self, ctx: ActorContext) -> None:
        self.ctx = ctx
        self.held: HeldLease | None = None
        self.leave = asyncio.Event()

    async def run(self) -> None:
        async with lease(self.ctx, "x") as held:
            self.held = held
            await self.leave.wait()


async def stored(ctx: ActorContext) -> tuple[Lease, int]:
    entry = await ctx.bus.kv.get(wiring.LEASE.key("x"))
    assert entry is not None
    assert isinstance(entry.message, Lease)
    return entry.message, entry.revision


async def overwrite(ctx: ActorContext, **fields: object) -> None:
    """Another process's write of the lease: it comes as it would over the wire."""
    record, _ = await stored(ctx)
    await ctx.bus.kv.put(wiring.LEASE.key("x"), msgspec.structs.replace(record, **fields))


async def test_a_standby_waits_as_long_as_the_lease_is_renewed(memory_server: MemoryServer, tmp_path: Path) -> None:
    async with contenders(memory_server, tmp_path) as (one, two), asyncio.TaskGroup() as group:
        leader, standby = Contender(one), Contender(two)
        group.create_task(leader.run())
        await eventually(lambda: leader.held)
        group.create_task(standby.run())
        await eventually(lambda: two.state == MemberState.STANDBY)
        assert two.member().waits_for == "the lease (standby: dataflow-a-0 leads)"

        _, first = await stored(one)
        started = boottime()
        await eventually(lambda: boottime() - started > 2 * LEASE_S)
        assert standby.held is None
        _, later = await stored(one)
        assert later > first
        leader.leave.set()
        standby.leave.set()


async def test_a_standby_follows_a_release_without_waiting(memory_server: MemoryServer, tmp_path: Path) -> None:
    async with contenders(memory_server, tmp_path, lease_s=600.0) as (one, two), asyncio.TaskGroup() as group:
        leader, standby = Contender(one), Contender(two)
        group.create_task(leader.run())
        await eventually(lambda: leader.held)
        group.create_task(standby.run())
        await eventually(lambda: two.state == MemberState.STANDBY)
        leader.leave.set()
        await eventually(lambda: standby.held)
        assert (leader.held and leader.held.epoch, standby.held and standby.held.epoch) == (1, 2)
        assert two.member().waits_for == ""
        standby.leave.set()


async def test_a_release_holds_also_when_a_renewal_was_cut_off_in_flight(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with contenders(memory_server, tmp_path, lease_s=600.0) as (one, _):
        for turns in range(150):
            async with lease(one, "x") as held:
                assert held is not None
                await asyncio.sleep(0.004)
                held._hurry.set()  # the next renewal leaves now
                for _ in range(turns % 10):
                    await asyncio.sleep(0)
            record, _revision = await stored(one)
            assert record.holder == ""


async def test_a_silent_holder_is_replaced_after_the_lease_and_the_event_says_why(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with contenders(memory_server, tmp_path) as (one, two), asyncio.TaskGroup() as group:
        silent = Lease(holder="h", epoch=7, actor="dataflow-c-0", process=own_process(), lease_s=LEASE_S)
        seen = boottime()
        await one.bus.kv.put(wiring.LEASE.key("x"), silent, expected_revision=0)
        standby = Contender(two)
        group.create_task(standby.run())
        await eventually(lambda: standby.held)
        assert boottime() - seen >= LEASE_S
        assert standby.held is not None
        assert standby.held.epoch == 8
        entry = await two.bus.logs.last(two.bus.topology.events, two.bus.topology.event("warning"))
        assert entry is not None
        assert isinstance(entry.message, Event)
        assert entry.message.text == "dataflow-b-0 takes over x from dataflow-c-0: it was silent (epoch 8)"
        standby.leave.set()


async def test_a_holder_whose_process_has_ended_is_replaced_without_waiting(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with contenders(nats_server, tmp_path) as (one, two), asyncio.TaskGroup() as group:
        child = await asyncio.create_subprocess_exec("sleep", "60")
        process = process_of(child.pid)
        record = Lease(holder="h", epoch=1, actor="dataflow-c-0", process=process, lease_s=600.0)
        await one.bus.kv.put(wiring.LEASE.key("x"), record, expected_revision=0)
        standby = Contender(two)
        group.create_task(standby.run())
        await eventually(lambda: two.state == MemberState.STANDBY)

        child.kill()

        await eventually(lambda: standby.held)
        await child.wait()
        standby.leave.set()


async def test_a_holder_that_lost_the_lease_is_cancelled_and_fenced(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    ends: list[str] = []

    async def work() -> None:
        async with lease(one, "x"):
            await overwrite(one, holder="other", epoch=2, actor="dataflow-b-0")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ends.append("cancelled")
                raise

    async with contenders(memory_server, tmp_path) as (one, _):
        with pytest.raises(FencedError, match=r"lease\.x \(epoch 1\) was lost to dataflow-b-0 \(epoch 2\)"):
            await work()
        assert ends == ["cancelled"]
        record, _ = await stored(one)
        assert (record.holder, record.epoch) == ("other", 2)


async def test_work_waits_after_a_blocked_loop_and_goes_on_if_nobody_took_the_lease(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with contenders(nats_server, tmp_path) as (one, _), lease(one, "x") as held:
        assert held is not None
        _, before = await stored(one)
        time.sleep(1.5 * LEASE_S)  # noqa: ASYNC251 - the loop is to be blocked
        await held.held()
        record, after = await stored(one)
        assert after > before
        assert record.epoch == held.epoch == 1


async def test_work_never_starts_after_a_blocked_loop_if_somebody_took_the_lease(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    done: list[str] = []

    async def work() -> None:
        async with lease(one, "x") as held:
            assert held is not None
            await overwrite(two, holder="other", epoch=2, actor="dataflow-b-0")
            time.sleep(1.5 * LEASE_S)  # noqa: ASYNC251 - the loop is to be blocked
            await held.held()
            done.append("work")

    async with contenders(nats_server, tmp_path) as (one, two):
        with pytest.raises(FencedError):
            await work()
        assert not done


async def test_a_lease_outlives_a_restart_of_the_server_that_is_longer_than_it(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with contenders(nats_server, tmp_path) as (one, two), asyncio.TaskGroup() as group:
        leader, standby = Contender(one), Contender(two)
        group.create_task(leader.run())
        await eventually(lambda: leader.held)
        group.create_task(standby.run())
        await eventually(lambda: two.state == MemberState.STANDBY)
        await kill(nats_server)
        gone = boottime()
        await eventually(lambda: boottime() - gone > 1.5 * LEASE_S)
        await nats_server.start()

        assert leader.held is not None
        await leader.held.held()
        back = boottime()
        await eventually(lambda: boottime() - back > 1.5 * LEASE_S)

        assert standby.held is None
        assert (await stored(one))[0].epoch == 1
        two.stop("drain")
        standby.leave.set()
        leader.leave.set()


async def test_an_actor_that_is_stopped_while_it_waits_holds_nothing(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with contenders(memory_server, tmp_path) as (one, two), lease(one, "x"):
        async with asyncio.TaskGroup() as group:
            standby = Contender(two)
            standby.leave.set()
            group.create_task(standby.run())
            await eventually(lambda: two.state == MemberState.STANDBY)
            two.stop("drain")
        assert standby.held is None
        assert (await stored(one))[0].actor == "dataflow-a-0"


async def test_many_contenders_hold_it_one_after_the_other_with_rising_epochs(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    holders: list[int] = []
    inside = 0

    async def hold(ctx: ActorContext) -> None:
        nonlocal inside
        for _ in range(3):
            async with lease(ctx, "x") as held:
                assert held is not None
                inside += 1
                assert inside == 1
                holders.append(held.epoch)
                await ctx.bus.kv.get(wiring.RUN.key())  # let the others try
                inside -= 1

    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        for number in range(4):
            ctx = await stack.enter_async_context(
                context(memory_server, tmp_path, role="dataflow", name=f"dataflow-a-{number}")
            )
            group.create_task(hold(ctx))
    assert holders == list(range(1, 13))


async def test_a_holder_writes_its_lease_anew_when_something_else_is_there(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with contenders(nats_server, tmp_path) as (one, two), asyncio.TaskGroup() as group:
        leader, standby = Contender(one), Contender(two)
        group.create_task(leader.run())
        await eventually(lambda: leader.held)
        group.create_task(standby.run())
        before, _ = await stored(one)
        for data in (b"\xc1junk", b""):
            await store_raw(two.bus, two.bus.topology.kv_subject(wiring.LEASE.key("x")), data)
            await eventually(lambda: _readable(one))
            assert (await stored(one))[0] == before
        assert standby.held is None
        leader.leave.set()
        await eventually(lambda: standby.held)
        standby.leave.set()


async def _readable(ctx: ActorContext) -> bool:
    try:
        return bool(await stored(ctx))
    except UnreadableValueError:
        return False


async def test_a_lease_that_nobody_can_read_is_taken_when_nobody_renews_it(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with contenders(nats_server, tmp_path) as (one, two), asyncio.TaskGroup() as group:
        await store_raw(one.bus, one.bus.topology.kv_subject(wiring.LEASE.key("x")), b"\xc1junk")
        standby = Contender(two)
        began = boottime()
        group.create_task(standby.run())
        await eventually(lambda: standby.held)
        assert boottime() - began >= LEASE_S
        assert standby.held is not None
        assert standby.held.epoch > 1_000_000  # over that of any holder before
        standby.leave.set()


@pytest.mark.parametrize("forged", [{"lease_s": 1e12}, {"lease_s": float("nan")}, {"lease_s": -1.0}, {"epoch": 2**62}])
async def test_a_lease_that_no_holder_can_have_ends_as_any_other(
    memory_server: MemoryServer, tmp_path: Path, forged: dict[str, float]
) -> None:
    async with contenders(memory_server, tmp_path) as (one, _), asyncio.TaskGroup() as group:
        await one.bus.kv.put(
            wiring.LEASE.key("x"), Lease(**{"holder": "nobody", "actor": "?", "epoch": 3, "lease_s": 1.0} | forged)
        )
        taker = Contender(one)
        group.create_task(taker.run())
        await eventually(lambda: taker.held)
        assert taker.held is not None
        assert 3 < taker.held.epoch < 2**40
        taker.leave.set()


async def test_a_deleted_lease_is_written_again_by_its_holder_under_its_epoch(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with contenders(memory_server, tmp_path) as (one, _), asyncio.TaskGroup() as group:
        leader = Contender(one)
        group.create_task(leader.run())
        await eventually(lambda: leader.held)
        before, _ = await stored(one)
        await one.bus.kv.delete(wiring.LEASE.key("x"))

        async def again() -> bool:
            entry = await one.bus.kv.get(wiring.LEASE.key("x"))
            return entry is not None and entry.message == before

        await eventually(again)
        leader.leave.set()
