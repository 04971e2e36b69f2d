"""Deterministic mode: what waits for each other, at the rollout and at the replica; nobody waits for ever."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import pytest

from astraflow.actors.rollout.call import Call, Completion
from astraflow.actors.rollout.cohort_gate import CohortGate
from astraflow.bus.memory import MemoryServer
from astraflow.config import RunConfig, RunSection
from astraflow.messages import ChunkKind, Event, GenCancel, Sampling, Task, array_of
from tests.actors.contexts import CONFIG
from tests.actors.test_policy import Asker, publish, replica, slow
from tests.support import LIMIT_S, eventually, make_task


class Recorder:
    """Completes every call at once and remembers them in order."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    async def generate(self, call: Call) -> Completion:
        self.calls.append(call)
        empty = np.empty(0, np.int32)
        return Completion(
            tokens=empty, logprobs=empty.astype(np.float32), versions=(), finish_reason="stop", attempts=1
        )

    def rounds(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for call in self.calls:
            found.setdefault(f"{call.policy} {call.cohort_id} {call.cohort_size}", []).append(call.id)
        return {name: sorted(ids) for name, ids in found.items()}


async def play(gate: CohortGate, member: int, policies: str, *, size: int) -> None:
    """An episode that asks the policies in turn, one letter each."""
    task = make_task(id=f"t{member}", cohort_id="c", cohort_size=size)
    async with gate.episode(task) as client:
        for number, policy in enumerate(policies):
            await client.generate(call_of(task, number, policy))


def call_of(task: Task, number: int, policy: str) -> Call:
    return Call(
        id=f"{task.id}#{number}",
        policy=policy,
        prompt_tokens=np.empty(0, np.int32),
        sampling=Sampling(),
        seed=1,
        cohort_id=task.cohort_id,
        cohort_size=task.cohort_size,
    )


async def never(text: str) -> None:
    raise AssertionError(text)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2)])
async def test_rounds_are_the_same_in_any_order_with_turns_policies_and_failures(order: tuple[int, ...]) -> None:
    client = Recorder()
    gate = CohortGate(client, name="x", patience_s=60, tell=never)
    asks = {0: "ss", 1: "sv", 2: "v", 3: ""}  # 3 fails before it asks
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
        for member in order:
            group.create_task(play(gate, member, asks[member], size=4))
    assert client.rounds() == {
        "s c#0@x 2": ["t0#0", "t1#0"],
        "v c#0@x 1": ["t2#0"],
        "s c#1@x 1": ["t0#1"],
        "v c#1@x 1": ["t1#1"],
    }


async def test_a_cohort_goes_on_without_tasks_that_never_come_and_says_so() -> None:
    client, told = Recorder(), asyncio.Queue[str]()
    gate = CohortGate(client, name="x", patience_s=0.1, tell=told.put)
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
        for member in range(2):
            group.create_task(play(gate, member, "s", size=3))
    assert client.rounds() == {"s c#0@x 2": ["t0#0", "t1#0"]}
    assert "without 1 tasks" in told.get_nowait()
    assert told.empty()


async def test_a_cancelled_episode_is_not_waited_for() -> None:
    client = Recorder()
    gate = CohortGate(client, name="x", patience_s=60, tell=never)
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
        gone = group.create_task(play(gate, 0, "s", size=2))
        await asyncio.sleep(0)
        gone.cancel()
        group.create_task(play(gate, 1, "s", size=2))
    assert client.rounds() == {"s c#0@x 1": ["t1#0"]}


def deterministic(step_s: float = 0.01, slots: int = 4, **bus: float) -> RunConfig:
    run = RunSection(name="test", deterministic=True)
    return msgspec.structs.replace(slow(step_s, slots), run=run, bus=msgspec.structs.replace(CONFIG.bus, **bus))


TOGETHER: Mapping[str, object] = {"cohort_id": "c", "cohort_size": 2}


async def test_a_cohort_whose_member_is_cancelled_runs_without_it(memory_server: MemoryServer, tmp_path: Path) -> None:
    async with replica(memory_server, tmp_path, deterministic()) as (ctx, _), Asker.open(ctx.bus) as asker:
        await asker.ask("a", **TOGETHER)
        await eventually(lambda: asker.kinds("a"))
        await ctx.bus.core.publish(ctx.bus.topology.gen_cancel("solver"), GenCancel(request_id="a"))
        await asker.ask("b", cohort_id="c", cohort_size=1)
        await eventually(lambda: asker.finished("b"))
        assert not asker.tokens("a")


async def test_a_request_that_the_engine_refuses_leaves_its_cohort_which_runs(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with replica(memory_server, tmp_path, deterministic()) as (ctx, publisher), Asker.open(ctx.bus) as asker:
        await asker.ask("a", cohort_id="c", cohort_size=3)
        await asker.ask("foreign", prompt_tokens=array_of([1, 100_000], "i4"), cohort_id="c", cohort_size=3)
        await asker.ask("cold", sampling=Sampling(temperature=-1.0), cohort_id="c", cohort_size=3)
        for id in ("foreign", "cold"):
            await eventually(lambda id=id: ChunkKind.REFUSED in asker.kinds(id))  # type: ignore[misc]
        await eventually(lambda: asker.finished("a"))
        for id in ("e", "f"):
            await asker.ask(id, prompt_tokens=array_of([1, 100_000], "i4"), cohort_id="e", cohort_size=2)
        for id in ("e", "f"):
            await eventually(lambda id=id: ChunkKind.REFUSED in asker.kinds(id))  # type: ignore[misc]
        await publish(publisher, 1)  # a swap gets its turn too
        await asker.ask("next", cohort_id="d", cohort_size=1, min_version=1)
        await eventually(lambda: asker.finished("next"))


async def test_a_request_that_never_comes_is_not_waited_for_for_ever(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    config = deterministic(ack_wait_s=0.5)
    async with replica(memory_server, tmp_path, config) as (ctx, _), Asker.open(ctx.bus) as asker:
        await asker.ask("a", **TOGETHER)
        await eventually(lambda: asker.finished("a"))
        events = [entry.message async for entry in ctx.bus.logs.read(ctx.bus.topology.events, follow=False)]
        assert [event.name for event in events if isinstance(event, Event)] == ["not-repeatable"]


async def test_a_swap_waits_for_the_cohort_that_runs_and_goes_before_the_next(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with (
        replica(memory_server, tmp_path, deterministic(0.02)) as (ctx, publisher),
        Asker.open(ctx.bus) as asker,
    ):
        for id in ("a", "b"):
            await asker.ask(id, **TOGETHER)
        await eventually(lambda: asker.tokens("a"))
        await publish(publisher, 1)
        for id in ("c", "d"):
            await asker.ask(id, cohort_id="next", cohort_size=2, min_version=1)
        await eventually(lambda: asker.finished("c") and asker.finished("d"))
        versions = {chunk.request_id: {s.version for s in chunk.versions} for chunk in asker.chunks if chunk.versions}
        assert versions == {"a": {0}, "b": {0}, "c": {1}, "d": {1}}
