"""Replicas that are killed or frozen in mid-generation: the tokens are those of an undisturbed run."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from astraflow.actors.base.connection import Connection
from astraflow.actors.rollout.handle import turn_seed
from astraflow.bus import Bus, EmbeddedServer
from astraflow.engines.toy import toy_completion
from astraflow.messages import ChunkKind, Episode, GenChunk
from astraflow.messages.ids import keyed_seed
from astraflow.messages.metric_names import ROLLOUT_WASTED_CHUNKS
from astraflow.models.toy import TOY_EOS, TOY_VOCAB
from tests.cli.toyrun import Command, sets, started
from tests.e2e.finite import FiniteRun
from tests.e2e.liverun import bus_of, members
from tests.e2e.processes import kill, pid_of
from tests.support import eventually

TOKENS = 48
RUN = FiniteRun(name="goon", groups=40, step_s=0.0, replicas=2, new_tokens=TOKENS)
SLOW = f"policies.solver.engine={{ kind = 'toy', slots = 4, toy_step_s = 0.05, replicas = {RUN.replicas} }}"


@contextlib.asynccontextmanager
async def chunks_of(bus: Bus) -> AsyncIterator[list[GenChunk]]:
    """Every chunk that any requester is sent."""
    heard: list[GenChunk] = []
    async with bus.core.subscribe(f"{bus.topology.replies}>") as feed, asyncio.TaskGroup() as group:

        async def listen() -> None:
            async for decoded in feed:
                if isinstance(decoded.message, GenChunk):
                    heard.append(decoded.message)

        task = group.create_task(listen())
        yield heard
        task.cancel()


def tokens_kept(heard: list[GenChunk]) -> int:
    """Tokens that continuations began with: what regenerating would have sampled again."""
    first: dict[tuple[str, int], int] = {}
    for chunk in heard:
        if chunk.kind is ChunkKind.TOKENS and chunk.attempt > 0:
            first.setdefault((chunk.request_id, chunk.attempt), chunk.position)
    return sum(first.values())


def differs(episode: Episode) -> str:
    """In what an episode's tokens differ from those of an undisturbed run; "" if in nothing."""
    _, source, epoch, index, member = episode.task_id.split("/")
    seed = keyed_seed(3, "task", source, int(epoch), int(index), int(member))
    (trajectory,) = episode.trajectories
    prompt = np.empty(0, np.int32)
    for number, turn in enumerate(trajectory.turns):
        prompt = np.concatenate([prompt, turn.context_tokens.numpy()])
        wanted, logprobs = toy_completion(
            prompt, turn_seed(seed, "solver", number), 0, TOKENS, vocab_size=TOY_VOCAB, eos=TOY_EOS
        )
        found = turn.completion_tokens.numpy()
        if not np.array_equal(found, wanted[: found.size]) or (found.size < TOKENS and found[-1] != TOY_EOS):
            return f"{episode.task_id} turn {number}: {found.tolist()} instead of {wanted.tolist()}"
        if not np.array_equal(turn.logprobs.numpy(), logprobs[: found.size]):
            return f"{episode.task_id} turn {number}: logprobs"
        spans = [(span.start, span.end) for span in turn.versions]
        versions = [span.version for span in turn.versions]
        ends = [0, *(end for _, end in spans)]
        if [start for start, _ in spans] != ends[:-1] or ends[-1] != found.size or versions != sorted(versions):
            return f"{episode.task_id} turn {number}: versions {turn.versions} of {found.size} tokens"
        prompt = np.concatenate([prompt, found])
    return ""


@pytest.mark.slow
async def test_killed_and_frozen_replicas_change_no_token(
    nats_server: EmbeddedServer, tmp_path: Path, record_property
) -> None:
    (tmp_path / "run.toml").write_text(RUN.text())
    connection = Connection(url=nats_server.url, region="local", token_file=nats_server.token_file)
    settings = [f"bus.url={nats_server.url}", f"bus.token_file={nats_server.token_file}", SLOW]
    settings += ["record.keep_episodes=true"]
    async with started(tmp_path, "up", "run.toml", *sets(*settings)) as command:
        await command.expect("solver step 1/")
        async with bus_of(connection, RUN.name) as bus, chunks_of(bus) as heard:
            for number in (0, 1):
                await in_mid_generation(heard)
                kill(f"policy-local-{number}", parent=command.process.pid)
                await command.expect(f"policy-local-{number} is ready")
            await frozen_and_back(command, bus, heard)
            assert await command.end() == 0, command.output
            log = bus.logs.read(bus.topology.episodes, follow=False)
            episodes = [entry.message async for entry in log]
    assert RUN.broken(tmp_path / f"runs/{RUN.name}") == []
    assert [wrong for each in episodes if (wrong := differs(each))] == []
    assert tokens_kept(heard) > 0
    record_property("tokens that regenerating would have sampled again", tokens_kept(heard))
    record_property("tokens sampled", sum(c.tokens.shape[0] for c in heard if c.tokens is not None))


async def in_mid_generation(heard: list[GenChunk]) -> None:
    """Return when a replica has just sent tokens that aren't the last."""
    since = len(heard)
    await eventually(lambda: any(c.kind is ChunkKind.TOKENS and not c.finish_reason for c in heard[since:]))


async def frozen_and_back(command: Command, bus: Bus, heard: list[GenChunk]) -> None:
    """A stopped replica loses its requests to the other; back again it serves, and what it says late isn't used."""
    await in_mid_generation(heard)
    name = "policy-local-1"
    incarnation, pid = (await members(bus))[name].incarnation, pid_of(name, parent=command.process.pid)
    os.kill(pid, signal.SIGSTOP)
    try:
        await eventually(lambda: not_there(bus, name))
        await command.expect("solver step ")
    finally:
        os.kill(pid, signal.SIGCONT)
    since = len(heard)
    await eventually(lambda: any(c.replica == incarnation and c.kind is ChunkKind.ACCEPTED for c in heard[since:]))
    await eventually(lambda: wasted(bus))


async def not_there(bus: Bus, name: str) -> bool:
    return name not in await members(bus)


async def wasted(bus: Bus) -> float:
    """Chunks that rollouts refused because the attempt isn't their sender's."""
    return sum(member.gauges.get(ROLLOUT_WASTED_CHUNKS, 0.0) for member in (await members(bus)).values())
