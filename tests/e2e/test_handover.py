"""Work changes hands at once: a drained replica's requests, a drained rollout's tasks, a newcomer's first token.

All timeouts are minutes, so that whatever waits for one fails its test.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from astraflow.bus import Bus, wiring
from astraflow.messages import ChunkKind, GenChunk, Head
from astraflow.messages.metric_names import ROLLOUT_RUNNING
from tests.cli.toyrun import Command, finished, sets, started, write_toy
from tests.e2e.liverun import bus_of, connection_to, members
from tests.support import eventually

A_TIMEOUT_S = 200
PATIENT = (
    f"bus.ack_wait_s={A_TIMEOUT_S}",
    f"bus.silence_s={A_TIMEOUT_S}",
    f"bus.request_ttl_s={2 * A_TIMEOUT_S}",
    "node.episodes_per_rollout=8",
)
SLOW_ENGINE = "policies.solver.engine={ kind = 'toy', replicas = 2, slots = 4, toy_step_s = 0.05 }"
SAMPLING = "policies.solver.sampling={ max_new_tokens = 30 }"


@contextlib.asynccontextmanager
async def chunks_of(bus: Bus) -> AsyncIterator[list[tuple[float, GenChunk]]]:
    """Every chunk that any requester is sent, with the time of its arrival."""
    heard: list[tuple[float, GenChunk]] = []
    async with bus.core.subscribe(f"{bus.topology.replies}>") as feed, asyncio.TaskGroup() as group:

        async def listen() -> None:
            async for decoded in feed:
                if isinstance(decoded.message, GenChunk):
                    heard.append((time.monotonic(), decoded.message))

        task = group.create_task(listen())
        yield heard
        task.cancel()


def handovers(heard: list[tuple[float, GenChunk]]) -> list[float | None]:
    """Seconds from each goodbye to the acceptance of the next attempt; None if there is none (yet)."""
    accepted = {(c.request_id, c.attempt): at for at, c in heard if c.kind is ChunkKind.ACCEPTED}
    goodbyes = [(at, c) for at, c in heard if c.kind is ChunkKind.GOODBYE]
    times = [(at, accepted.get((c.request_id, c.attempt + 1))) for at, c in goodbyes]
    return [None if then is None else then - at for at, then in times]


@pytest.mark.slow
async def test_drained_replicas_and_rollouts_hand_over_at_once(tmp_path: Path, record_property) -> None:
    write_toy(tmp_path)
    endless = ["policies.solver.trainer.steps=100000", "node.rollouts=2", SLOW_ENGINE, SAMPLING]
    async with started(tmp_path, "up", "run.toml", *sets(*PATIENT, *endless)) as up:
        await up.expect("solver step 1/")
        async with bus_of(connection_to(tmp_path / "runs/demo")) as bus, chunks_of(bus) as heard:
            await eventually(lambda: busy(bus, "rollout-local-1"))
            code, output = await finished(tmp_path, "drain", "policy-local-1")
            assert code == 0, output
            await eventually(lambda: handovers(heard) and None not in handovers(heard))
            assert max(handovers(heard)) < A_TIMEOUT_S / 2, handovers(heard)
            record_property("seconds from goodbye to the next replica", handovers(heard))

            await eventually(lambda: busy(bus, "rollout-local-1"))
            before = (await bus.logs.state(bus.topology.episodes)).last_sequence
            code, output = await finished(tmp_path, "drain", "rollout-local-1")
            assert code == 0, output
            await steps(up, 4)  # whose groups had members in the drained pool
            assert (await bus.logs.state(bus.topology.episodes)).last_sequence > before
            assert "didn't end within" not in up.output


async def steps(up: Command, count: int) -> None:
    for _ in range(count):
        await up.expect("solver step ", within_s=A_TIMEOUT_S / 2)


async def busy(bus: Bus, actor: str) -> bool:
    """Whether a rollout has more than half of its episodes in work."""
    member = (await members(bus)).get(actor)
    return member is not None and member.gauges.get(ROLLOUT_RUNNING, 0) >= 4


@pytest.mark.slow
async def test_a_newcomers_first_token_is_of_the_current_version(tmp_path: Path, record_property) -> None:
    write_toy(tmp_path)
    one = SLOW_ENGINE.replace("replicas = 2", "replicas = 1")
    moving = ["policies.solver.trainer.steps=100000", "policies.solver.trainer.toy_step_s=0.2", one, SAMPLING]
    async with started(tmp_path, "up", "run.toml", *sets(*PATIENT, *moving)) as up:
        await up.expect("solver step 3/")
        connection = connection_to(tmp_path / "runs/demo")
        async with bus_of(connection) as bus, chunks_of(bus) as heard, heads_of(bus) as heads:
            await eventually(lambda: queued(bus))
            began = time.monotonic()
            command = [sys.executable, "-m", "astraflow.actors", "--role", "policy", "--name", "policy-new-0"]
            command += ["--node", "new", "--policy", "solver", "--run", "demo", "--url", connection.url]
            command += ["--token-file", str(connection.token_file), "--folder", str(tmp_path)]
            newcomer = await asyncio.create_subprocess_exec(*command)
            try:
                incarnation = await eventually(lambda: incarnation_of(bus, "policy-new-0"))
                at, first = await eventually(lambda: first_tokens(heard, incarnation))
            finally:
                newcomer.terminate()
                assert await newcomer.wait() == 0
            record_property("seconds from process start to the first token", at - began)
            head = max(version for then, version in heads if then <= at)
            assert first.versions[0].version >= head - 1  # engine.max_replica_lag
            assert at - began < A_TIMEOUT_S / 2


@contextlib.asynccontextmanager
async def heads_of(bus: Bus) -> AsyncIterator[list[tuple[float, int]]]:
    """Every head of solver's, with the time at which it was seen."""
    seen: list[tuple[float, int]] = []
    async with asyncio.TaskGroup() as group:

        async def watch() -> None:
            async with contextlib.aclosing(bus.kv.watch(wiring.HEAD.key("solver"))) as updates:
                async for update in updates:
                    if isinstance(update.message, Head):
                        seen.append((time.monotonic(), update.message.version))

        task = group.create_task(watch())
        yield seen
        task.cancel()


def first_tokens(heard: list[tuple[float, GenChunk]], incarnation: str) -> tuple[float, GenChunk] | None:
    return next(
        ((at, c) for at, c in heard if c.replica == incarnation and c.kind is ChunkKind.TOKENS and c.versions), None
    )


async def incarnation_of(bus: Bus, actor: str) -> str:
    member = (await members(bus)).get(actor)
    return member.incarnation if member else ""


async def queued(bus: Bus) -> int:
    return (await bus.queues.depths())["gen.solver"]
