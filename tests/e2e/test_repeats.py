"""Everything comes twice, later than any dedupe window could know: no task is trained twice."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from astraflow.actors.base.connection import Connection
from astraflow.bus import Bus, EmbeddedServer
from astraflow.messages import Episode, SampleBatch, Task
from tests.cli.toyrun import sets, started
from tests.e2e.finite import FiniteRun
from tests.e2e.liverun import bus_of


@contextlib.asynccontextmanager
async def repeating(bus: Bus) -> AsyncIterator[dict[str, int]]:
    """Stores what is new in TASKS, EPISODES and SAMPLES once more under other ids; counts it."""
    repeated = {"task": 0, "episode": 0, "batch": 0}
    topology = bus.topology

    async def repeat_episodes() -> None:
        seen = set()
        async for entry in bus.logs.read(topology.episodes):
            if not isinstance(entry.message, Episode) or entry.message.task_id in seen:
                continue
            seen.add(entry.message.task_id)
            repeated["episode"] += 1
            other = [msgspec.structs.replace(each, reward=each.reward + 1) for each in entry.message.trajectories]
            for number, episode in enumerate(
                (entry.message, msgspec.structs.replace(entry.message, trajectories=tuple(other)))
            ):
                await bus.publish(entry.subject, episode, msg_id=f"again-{number}/{entry.cursor.message_id}")

    async def repeat_tasks() -> None:
        """A work queue isn't read by others: the run's decisions say what is in it, the same task comes again."""
        seen = set()
        async for entry in bus.logs.read(topology.episodes):
            episode = entry.message
            if isinstance(episode, Episode) and episode.task_id not in seen:
                seen.add(episode.task_id)
                task = Task(**episode.ref(), id=episode.task_id, seed=1, payload={"index": episode.index})
                await bus.publish(topology.task(task.env), task, msg_id=f"again/{task.id}")
                repeated["task"] += 1

    async def repeat_batches() -> None:
        seen = set()
        async for entry in bus.logs.read(topology.samples("solver")):
            if isinstance(entry.message, SampleBatch) and entry.message.number not in seen:
                seen.add(entry.message.number)
                if entry.message.number % 4 == 0:  # dataflow takes it for another writer and starts again
                    await bus.publish(entry.subject, entry.message, msg_id=f"again/{entry.cursor.message_id}")
                    repeated["batch"] += 1

    async with asyncio.TaskGroup() as group:
        jobs = [group.create_task(job()) for job in (repeat_episodes, repeat_tasks, repeat_batches)]
        yield repeated
        for job in jobs:
            job.cancel()


@pytest.mark.slow
async def test_tasks_episodes_and_batches_that_come_again_are_trained_once(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    run = FiniteRun(name="repeats", groups=12, step_s=0.1)
    (tmp_path / "run.toml").write_text(run.text())
    connection = Connection(url=nats_server.url, region="local", token_file=nats_server.token_file)
    server = [f"bus.url={nats_server.url}", f"bus.token_file={nats_server.token_file}"]
    async with started(tmp_path, "up", "run.toml", *sets(*server)) as command:
        await command.expect("dataflow-local-0 is")
        async with bus_of(connection, "repeats") as bus, repeating(bus) as repeated:
            assert await command.end() == 0, command.output
    assert run.broken(tmp_path / "runs/repeats") == []
    assert repeated["task"] > 24
    assert repeated["episode"] > 24
    assert repeated["batch"] >= 1
