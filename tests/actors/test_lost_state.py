"""What somebody deletes or forges under dataflow: what is known elsewhere is written again, the rest is a sentence."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from astraflow.actors.base.lease import lease
from astraflow.actors.base.owned_key import OwnedKey
from astraflow.actors.dataflow.actor import Dataflow, run
from astraflow.actors.dataflow.restore import Restored, restore
from astraflow.actors.dataflow.snapshot_copy import SnapshotCopy
from astraflow.actors.dataflow.store import DataflowStore, StoredState
from astraflow.bus import Bus, EmbeddedServer, NatsBus, wiring
from astraflow.bus.memory import MemoryServer
from astraflow.errors import LostStateError
from astraflow.messages import Lease, Ledger, Progress, SampleBatch
from tests.actors.contexts import Server, context
from tests.actors.test_dataflow_actor import OTHERS, config, leading
from tests.bus.raw import store_raw
from tests.support import eventually

POINTER = wiring.SNAPSHOT.key("dataflow")


async def delete(bus: Bus, stream: str) -> None:
    """As an operator would, with the `nats` tool."""
    assert isinstance(bus, NatsBus)
    await (await bus.link.session()).api(f"STREAM.DELETE.{stream}")


async def told(bus: Bus) -> list[str]:
    """Names of the events so far."""
    return [entry.message.name async for entry in bus.logs.read(bus.topology.events, follow=False)]


def state(core: bytes = b"core") -> StoredState:
    return StoredState(core=core, episodes=None, decisions=None, samples={})


@asynccontextmanager
async def stores(server: Server, folder: Path) -> AsyncIterator[tuple[Bus, DataflowStore, DataflowStore]]:
    """A store that has saved, and one of the next dataflow."""
    async with context(server, folder, role="dataflow", config=config()) as ctx:
        copy = SnapshotCopy(folder, incarnation="inc")
        old, new = (DataflowStore(ctx.bus, incarnation="inc", epoch=epoch, copy=copy) for epoch in (1, 2))
        assert await old.load() is None
        await old.save(state())
        yield ctx.bus, old, new


async def test_a_lost_snapshot_comes_from_the_copy(nats_server: EmbeddedServer, tmp_path: Path) -> None:
    async with stores(nats_server, tmp_path) as (bus, _, new):
        await bus.logs.purge(bus.topology.snapshots, below_sequence=99)
        assert await new.load() == state()
        assert await told(bus) == ["snapshot-rebuilt"]


async def test_a_snapshot_whose_pointer_is_gone_or_unreadable_comes_from_the_copy(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with stores(memory_server, tmp_path) as (bus, _, new):
        await bus.kv.delete(POINTER)
        assert await new.load() == state()
        await store_raw(bus, bus.topology.kv_subject(POINTER), b"junk")
        assert await new.load() == state()
        await new.save(state(b"later"))
        assert await new.load() == state(b"later")


@pytest.mark.parametrize("data", [None, b"", b"junk"])
async def test_without_a_copy_a_lost_snapshot_is_one_sentence(
    memory_server: MemoryServer, tmp_path: Path, data: bytes | None
) -> None:
    async with stores(memory_server, tmp_path) as (bus, _, new):
        copy = SnapshotCopy(tmp_path, incarnation="inc").path
        copy.unlink() if data is None else copy.write_bytes(data)
        await bus.logs.purge(bus.topology.snapshots, below_sequence=99)
        with pytest.raises(LostStateError, match=r"isn't in stream .*SNAPSHOTS.* no copy of it .*up --fresh"):
            await new.load()


async def test_a_copy_of_another_run_or_with_a_flipped_byte_is_none(tmp_path: Path) -> None:
    copy = SnapshotCopy(tmp_path, incarnation="one")
    copy.write(b"data" * 9, epoch=3)
    found = copy.read()
    assert found is not None
    assert (found.data, found.epoch) == (b"data" * 9, 3)
    assert SnapshotCopy(tmp_path, incarnation="two").read() is None
    flipped = bytearray(copy.path.read_bytes())
    flipped[-1] ^= 1
    copy.path.write_bytes(flipped)
    assert copy.read() is None


def test_what_a_killed_dataflow_left_half_written_is_removed_by_the_next(tmp_path: Path) -> None:
    copy = SnapshotCopy(tmp_path, incarnation="one")
    copy.write(b"first", epoch=1)
    ours, theirs = copy.path.with_name(".tmp-1-newest.msgpack"), copy.path.with_name(".tmp-3-newest.msgpack")
    ours.write_bytes(b"half")
    theirs.write_bytes(b"a later one's, which may still be writing")
    copy.write(b"second", epoch=2)
    assert sorted(copy.path.parent.iterdir()) == sorted([copy.path, theirs])
    assert copy.read() == (b"second", 2)


async def test_a_snapshot_stream_that_is_deleted_is_made_anew_by_the_next_save(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with stores(nats_server, tmp_path) as (bus, old, new):
        assert not await old.is_lost()
        await delete(bus, bus.topology.snapshots)
        assert await old.is_lost()
        await old.save(state(b"second"))
        assert not await old.is_lost()
        assert await new.load() == state(b"second")
        assert "stream-rebuilt" in await told(bus)


async def test_the_deleted_key_value_stream_is_made_anew_and_its_keys_are_written_again(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with context(nats_server, tmp_path, role="dataflow", config=config()) as ctx:
        bus, copy = ctx.bus, SnapshotCopy(tmp_path, incarnation="inc")
        async with lease(ctx, "dataflow", above=6) as held:
            assert held is not None
            assert held.epoch == 7
            store = DataflowStore(bus, incarnation="inc", epoch=7, copy=copy)
            assert await store.load() is None
            ledger = OwnedKey(bus, wiring.LEDGER.key("solver"))
            await ledger.put(Ledger(policy="solver", counts={}, epoch=7))
            await delete(bus, bus.topology.kv_stream(POINTER))
            await store.save(state())
            assert await ledger.mend()
            assert not await ledger.mend()

            async def renewed() -> bool:
                entry = await bus.kv.get(wiring.LEASE.key("dataflow"))
                return entry is not None and isinstance(entry.message, Lease) and entry.message.epoch == 7

            held._hurry.set()  # as before the next piece of work
            await eventually(renewed)
            assert await store.load() == state()


async def test_a_lost_log_of_decisions_is_made_anew_if_no_batch_stands_behind_the_snapshot(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with leading(nats_server, tmp_path) as (dataflow, restored, bus):
        for decision in restored.core.plan(0.0):
            await dataflow._decide(decision)
        await dataflow.save()
        before = restored.core.snapshot()
        await delete(bus, bus.topology.decisions)
        await bus.ensure()
        again = await _restored(dataflow)
        assert again.core.snapshot() == before
        assert "stream-rebuilt" in await told(bus)

        batch = SampleBatch(policy="solver", number=1, group_ids=(), samples=(), train_step=0)
        await bus.publish(bus.topology.sample("solver"), batch, msg_id="behind the snapshot")
    async with context(nats_server, tmp_path, role="dataflow", config=config()) as ctx:
        with pytest.raises(LostStateError, match=r"_DECISIONS is of incarnation .* made anew; restore .*--fresh"):
            await run(ctx)


async def test_emptied_decisions_go_on_where_nothing_stands_behind_the_snapshot(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with leading(nats_server, tmp_path) as (dataflow, restored, bus):
        for decision in restored.core.plan(0.0):
            await dataflow._decide(decision)
        await dataflow.save()
        last = (await bus.logs.state(bus.topology.decisions)).last_sequence
        await bus.logs.purge(bus.topology.decisions, below_sequence=last + 1)
        again = await _restored(dataflow)
        assert again.core.snapshot() == restored.core.snapshot()
        await again.decisions.append(OTHERS, msg_id="the next one")


async def _restored(dataflow: Dataflow) -> Restored:
    return await restore(dataflow._ctx, dataflow._envs, epoch=dataflow._lease.epoch)


@pytest.mark.parametrize(
    ("forged", "why"),
    [
        ({"consumed": 5}, "it says 5 batches, and 0 were emitted"),
        ({"consumed": -1}, "it says -1 batches, and 0 were emitted"),
        ({"step": 1}, "it says 1 steps of 0 batches"),
        ({"durable_sequence": 9}, "it says that 9 is durable, and the last batch is at 0"),
        ({"epoch": 99}, "its epoch is above its lease's"),
    ],
)
async def test_a_forged_progress_changes_nothing_and_is_told(
    nats_server: EmbeddedServer, tmp_path: Path, forged: dict[str, int], why: str
) -> None:
    async with leading(nats_server, tmp_path) as (dataflow, _, bus):
        await bus.kv.put(wiring.LEASE.key("trainer-solver"), Lease(holder="t", epoch=1))
        real = Progress(policy="solver", consumed=0, step=0, version=0, epoch=1)
        await bus.kv.put(wiring.PROGRESS.key("solver"), msgspec.structs.replace(real, **forged))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(dataflow.watch_progress()), group.create_task(dataflow.drive())]

            async def is_told() -> bool:
                texts = [e.message.text async for e in bus.logs.read(bus.topology.events, follow=False)]
                return any(why in text for text in texts)

            await eventually(is_told)
            for task in tasks:
                task.cancel()
        assert dataflow._durable_samples == {}
