"""The order in which dataflow's driver does things, on a real server: what isn't in a log hasn't happened."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from astraflow.actors.base.lease import lease
from astraflow.actors.dataflow.actor import Dataflow
from astraflow.actors.dataflow.restore import Restored, restore
from astraflow.actors.dataflow.snapshot_copy import SnapshotCopy
from astraflow.actors.dataflow.store import DataflowStore
from astraflow.bus import Bus, EmbeddedServer, wiring
from astraflow.config import RunConfig, SourceSection, TrainerSection
from astraflow.dataflow.core import DataflowCore
from astraflow.envs.registry import build_env
from astraflow.errors import FencedError
from astraflow.messages import Decision, DecisionKind, SampleBatch
from astraflow.messages.metric_names import RECORDER_EPISODES
from tests.actors.contexts import CONFIG, context
from tests.actors.run_in_progress import member
from tests.dataflow.dataflow_world import episode_of
from tests.support import LIMIT_S, eventually, make_episode

OTHERS = Decision(kind=DecisionKind.ISSUE, source="game", epoch=0, index=0, group_id="inc/game/0/0", group_size=1)


def config() -> RunConfig:
    trainer = TrainerSection(steps=3, learner="toy", batch_groups=1, filters=())
    solver = msgspec.structs.replace(CONFIG.policies["solver"], trainer=trainer)
    sources = {"game": SourceSection(env="game", group_size=2)}
    return msgspec.structs.replace(CONFIG, policies={"solver": solver}, sources=sources, eval={})


@asynccontextmanager
async def leading(server: EmbeddedServer, folder: Path) -> AsyncIterator[tuple[Dataflow, Restored, Bus]]:
    """A dataflow that holds the lease and has begun nothing yet."""
    async with context(server, folder, role="dataflow", config=config()) as ctx, asyncio.timeout(LIMIT_S):
        envs = {name: build_env(section) for name, section in ctx.config.envs.items()}
        async with lease(ctx, "dataflow") as held:
            assert held is not None
            restored = await restore(ctx, envs, epoch=held.epoch)
            yield Dataflow(ctx, held, restored), restored, ctx.bus


async def fenced(dataflow: Dataflow) -> None:
    """Drive until somebody else's entry is found in a log."""
    with pytest.raises(ExceptionGroup) as found:
        await dataflow.drive()
    assert found.group_contains(FencedError)


def play(core: DataflowCore) -> None:
    """Decide, and read an answer to every task."""
    sequence = 0
    for decision in core.plan(0.0):
        core.apply_decision(decision)
        for task in core.tasks_of(decision, lambda env, index: {}):
            sequence += 1
            core.on_episode(episode_of(task, {"solver": float(task.member)}), sequence)


async def test_a_decision_that_is_not_in_the_log_is_not_applied(nats_server: EmbeddedServer, tmp_path: Path) -> None:
    async with leading(nats_server, tmp_path) as (dataflow, restored, bus):
        await bus.publish(bus.topology.decision(), OTHERS, msg_id="another dataflow's")
        await fenced(dataflow)
        assert restored.core.ledger("solver")["open"] == 0
        assert [decision.kind for decision in restored.core.plan(0.0)] == [DecisionKind.ISSUE] * 2, (
            "still to be decided"
        )


async def test_a_batch_that_is_not_in_the_log_is_not_applied(nats_server: EmbeddedServer, tmp_path: Path) -> None:
    async with leading(nats_server, tmp_path) as (dataflow, restored, bus):
        play(restored.core)
        before = restored.core.next_batch("solver")
        foreign = SampleBatch(policy="solver", number=1, group_ids=(), samples=(), train_step=0)
        await bus.publish(bus.topology.sample("solver"), foreign, msg_id="another dataflow's")
        await fenced(dataflow)
        assert before is not None
        assert restored.core.next_batch("solver") == before
        ledger = restored.core.ledger("solver")
        assert (ledger.get("emitted", 0), ledger["buffered"]) == (0, 4)


@pytest.mark.parametrize(("recorded", "first_kept"), [(None, 5), (2, 2), (9, 5)], ids=["nobody", "behind", "ahead"])
async def test_a_snapshot_knows_its_place_and_the_log_keeps_what_the_recorder_lacks(
    nats_server: EmbeddedServer, tmp_path: Path, recorded: int | None, first_kept: int
) -> None:
    async with leading(nats_server, tmp_path) as (dataflow, restored, bus):
        if recorded is not None:
            gauges = {RECORDER_EPISODES: float(recorded)}
            await bus.kv.put(wiring.MEMBER.key("recorder-n-0"), member("recorder-n-0", "recorder", gauges=gauges))
        for number in range(5):
            await bus.publish(bus.topology.episode("game"), make_episode(f"t{number}", "game"), msg_id=f"e{number}")
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(dataflow.read_episodes()), group.create_task(dataflow.drive())]
            await eventually(lambda: restored.core.ledger("solver")["unknown"] == 5)
            for task in tasks:
                task.cancel()
        await dataflow.save()
        stored = await DataflowStore(
            bus, incarnation="inc", epoch=9, copy=SnapshotCopy(tmp_path, incarnation="inc")
        ).load()
        assert stored is not None
        assert stored.episodes is not None
        assert stored.episodes.sequence == 5
        assert (await bus.logs.state(bus.topology.episodes)).first_sequence == first_kept
