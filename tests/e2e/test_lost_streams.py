"""Streams and keys deleted or forged under a whole run: it goes on, or ends with one sentence that says what to do."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from astraflow.bus import Bus, NatsBus, wiring
from astraflow.messages import Lease, Progress, SampleBatch
from tests.cli.toyrun import ENDED_EARLY, ENDLESS, Command, sets, started, write_toy
from tests.e2e.liverun import QUICK, bus_of, connection_to
from tests.e2e.processes import batches

SOON = ("dataflow.snapshot_every_s=0.5", "bus.lease_s=2")


@contextlib.asynccontextmanager
async def endless(folder: Path) -> AsyncIterator[tuple[Command, NatsBus]]:
    """A run in its third step, and its bus."""
    write_toy(folder)
    async with started(folder, "up", "run.toml", *sets(*ENDLESS, *QUICK, *SOON)) as command:
        await command.expect("solver step 3/")
        async with bus_of(connection_to(folder / "runs/demo")) as bus:
            assert isinstance(bus, NatsBus)
            yield command, bus


async def delete(bus: NatsBus, stream: str) -> None:
    await (await bus.link.session()).api(f"STREAM.DELETE.{stream}")


async def forge(bus: Bus, key: str, **fields: object) -> None:
    """Overwrite a key with its own value, changed."""
    entry = await bus.kv.get(key)
    assert entry is not None
    await bus.kv.put(key, msgspec.structs.replace(entry.message, **fields))


@pytest.mark.slow
async def test_a_run_outlives_deleted_streams_and_forged_values(tmp_path: Path) -> None:
    async with endless(tmp_path) as (command, bus):
        foreign = SampleBatch(policy="judge", number=1, group_ids=(), samples=(), train_step=0)
        lease = Lease(holder="nobody", actor="nobody", epoch=50, lease_s=1e12)
        harms = (
            lambda: delete(bus, bus.topology.snapshots),
            lambda: delete(bus, bus.topology.kv_stream("run")),
            lambda: forge(bus, wiring.HEAD.key("solver"), version=10**9, manifest_sequence=10**9),
            lambda: forge(bus, wiring.PROGRESS.key("solver"), consumed=10**9, step=10**9, epoch=10**9),
            lambda: bus.publish(bus.topology.sample("solver"), foreign, msg_id="another policy's"),
            lambda: bus.kv.put(wiring.LEASE.key("dataflow"), lease),
        )
        for harm in harms:
            await harm()
            for _ in range(4):
                await command.expect("solver step ")
        entry = await bus.kv.get(wiring.PROGRESS.key("solver"))
        assert entry is not None
        assert isinstance(entry.message, Progress)
        assert entry.message.consumed < 10**6
        command.process.terminate()
        assert await command.end() == ENDED_EARLY, command.output
    trained = batches(tmp_path / "runs/demo")
    assert trained == list(range(1, len(trained) + 1))


@pytest.mark.slow
async def test_a_run_whose_batches_are_deleted_ends_with_what_to_do(tmp_path: Path) -> None:
    async with endless(tmp_path) as (command, bus):
        await delete(bus, bus.topology.samples("solver"))
        assert await command.end() == 1, command.output
    told = command.output.strip().splitlines()[-1]
    assert "AF_demo_local_SAMPLES_solver" in told
    assert "up --fresh" in told
    assert "Traceback" not in command.output
