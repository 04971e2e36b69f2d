"""Join, drain and kill on a live run, by `astraflow up` as a user would, watched from outside.

A replica joins as a process of its own; what happens to requests is seen in the chunks that go to their requesters.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pipeline_run import options_of, started
from processes import children

from astraflow.bus import Bus, BusOptions, NatsBus, topology_of, wiring
from astraflow.messages import ChunkKind, Event, GenChunk, Head, Lease, Member, MemberState, Progress
from astraflow.runfile import load

T = TypeVar("T")

RUN = "elastic"
WITHIN_S = 120.0
STEP_S = 0.02
SETTINGS = {"ack_wait_s": 3.0, "silence_s": 3.0, "member_ttl_s": 3, "lease_s": 3.0}
PROMPT_TOKENS, COMPLETION_TOKENS = 32, 200

RUN_FILE = f"""\
[run]
name = "{RUN}"

[policies.solver]
model = "toy"
engine = {{ kind = "toy", slots = 32, replicas = 1, toy_step_s = {STEP_S}, context_length = 1024 }}

[policies.solver.trainer]
learner = "toy"
steps = 1000000
batch_groups = 2
max_staleness = 2
filters = []

[envs.bench]
kind = "pipeline_env:FixedLengthEnv"
args = {{ prompt_tokens = {PROMPT_TOKENS}, completion_tokens = {COMPLETION_TOKENS} }}

[sources.bench]
env = "bench"
group_size = 4

[dataflow]
standbys = 1
snapshot_every_s = 1

[node]
rollouts = 2
episodes_per_rollout = 32

[bus]
{chr(10).join(f"{key} = {value}" for key, value in SETTINGS.items())}
"""


@dataclass
class Attempt:
    """One attempt at a generation, as seen on the wire."""

    replica: str
    accepted_at: float
    tokens: int = 0  # that it sampled
    reached: int = 0  # tokens of the completion, those of earlier attempts included
    last_at: float = 0.0
    ended: bool = False


@dataclass
class Wire:
    """All attempts, by request and number."""

    attempts: dict[tuple[str, int], Attempt] = field(default_factory=dict)
    goodbyes: dict[tuple[str, int], float] = field(default_factory=dict)

    def take(self, chunk: GenChunk) -> None:
        key, now = (chunk.request_id, chunk.attempt), time.monotonic()
        attempt = self.attempts.setdefault(key, Attempt(chunk.replica, now))
        attempt.last_at = now
        if chunk.kind is ChunkKind.TOKENS and chunk.tokens is not None:
            count = len(chunk.tokens.data) // 4
            attempt.tokens += count
            attempt.reached = chunk.position + count
            attempt.ended = bool(chunk.finish_reason)
        elif chunk.kind is ChunkKind.GOODBYE:
            attempt.ended, self.goodbyes[key] = True, now

    def open_at(self, replica: str) -> dict[tuple[str, int], Attempt]:
        """What a replica is working on and has sent tokens of."""
        return {k: a for k, a in self.attempts.items() if a.replica == replica and not a.ended and a.tokens}

    def followers(self, keys: list[tuple[str, int]]) -> list[Attempt]:
        """The next attempts, of those that have one."""
        return [self.attempts[key] for request, n in keys if (key := (request, n + 1)) in self.attempts]


class Watched:
    """A live run: its bus, its wire, its events."""

    def __init__(self, bus: Bus, options: BusOptions, up: int, folder: Path) -> None:
        self.bus = bus
        self.options = options
        self.up = up
        self.folder = folder
        self.wire = Wire()
        self.head = 0
        self.step = 0
        self.holders: dict[str, str] = {}  # actors by lease
        self.members: dict[str, Member] = {}
        self.events: list[tuple[float, Event]] = []
        self.head_at_accept: dict[str, int] = {}  # by replica, of the first request that it took
        self.first_tokens: dict[str, tuple[float, int, int]] = {}  # by replica: when, version, head when it was taken

    async def hear_chunks(self) -> None:
        async with self.bus.core.subscribe(f"{self.bus.topology.replies}>") as feed:
            async for decoded in feed:
                chunk = decoded.message
                if isinstance(chunk, GenChunk):
                    self.wire.take(chunk)
                    taken = self.head_at_accept.setdefault(chunk.replica, self.head)  # tokens come up to 0.25 s later
                    if chunk.versions and chunk.replica not in self.first_tokens:
                        self.first_tokens[chunk.replica] = (time.monotonic(), chunk.versions[0].version, taken)

    async def hear_keys(self) -> None:
        async with aclosing(self.bus.kv.watch("")) as updates:
            async for update in updates:
                if isinstance(update.message, Head):
                    self.head = update.message.version
                elif isinstance(update.message, Progress):
                    self.step = update.message.step
                elif isinstance(update.message, Member):
                    self.members[update.message.actor] = update.message
                elif isinstance(update.message, Lease):
                    self.holders[update.key.removeprefix(wiring.LEASE.prefix)] = update.message.actor

    async def hear_events(self) -> None:
        async with aclosing(self.bus.logs.read(self.bus.topology.events)) as entries:
            async for entry in entries:
                self.events.append((time.monotonic(), entry.message))

    def pid(self, actor: str) -> int:
        return children(self.up).get(actor, 0)

    def standby(self, leader: str) -> bool:
        """Whether another dataflow waits for the lease."""
        others = [m for m in self.members.values() if m.role == "dataflow" and m.actor != leader]
        return any(m.state is MemberState.STANDBY for m in others)

    def taken_over(self, since: float, lease: str) -> float:
        """When the next holder said so; 0 = not yet."""
        told = [
            at for at, e in self.events if at > since and e.name == "lease-taken-over" and f" over {lease} " in e.text
        ]
        return told[0] if told else 0.0

    async def newcomer(self, name: str) -> asyncio.subprocess.Process:
        token = self.folder / "token"
        token.write_text(self.options.token)
        command = [sys.executable, "-m", "astraflow.actors", "--role", "policy", "--name", name, "--node", "new"]
        command += ["--policy", "solver", "--run", RUN, "--url", self.options.url, "--token-file", str(token)]
        with (self.folder / f"{name}.log").open("wb") as log:
            return await asyncio.create_subprocess_exec(
                *command, "--folder", str(self.folder), stdout=log, stderr=log, env=os.environ.copy()
            )


async def until(value: Callable[[], T], what: str) -> T:
    """The first true value. A benchmark may look again and again."""
    deadline = time.monotonic() + WITHIN_S
    while not (found := value()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {WITHIN_S:g} s: {what}")
        await asyncio.sleep(0.005)
    return found


@asynccontextmanager
async def live_run(folder: Path, *, train_s: float) -> AsyncIterator[Watched]:
    """A run that has done its first step, with two rollouts, two dataflows and one replica."""
    file = folder / "run.toml"
    file.write_text(RUN_FILE.replace('learner = "toy"', f'learner = "toy"\ntoy_step_s = {train_s}'))
    config = load(file, environments=False)
    async with started(folder, file) as process:
        options = await options_of(folder, process, RUN)
        async with NatsBus.connect(options, topology_of(config), producer="bench") as bus, asyncio.TaskGroup() as group:
            run = Watched(bus, options, process.pid, folder)
            hearing = [group.create_task(run.hear_keys())]
            await until(lambda: run.step, "the first step")
            hearing += [group.create_task(run.hear_chunks()), group.create_task(run.hear_events())]
            yield run
            for task in hearing:
                task.cancel()


async def join_and_drain(run: Watched, number: int) -> dict[str, float]:
    """A replica from process start to its first token, then from SIGTERM to the end of its process."""
    began = time.monotonic()
    process, name = await run.newcomer(f"policy-new-{number}"), f"policy-new-{number}"
    incarnation = await until(lambda: name in run.members and run.members[name].incarnation, f"{name} joins")
    at, version, head = await until(lambda: run.first_tokens.get(incarnation), f"{name} samples")
    held = list((await until(lambda: run.wire.open_at(incarnation), f"{name} works")).keys())
    told = time.monotonic()
    process.terminate()
    await process.wait()
    ended = time.monotonic() - told
    held = [key for key, at in run.wire.goodbyes.items() if at > told] or held
    nexts = await until(lambda: len(run.wire.followers(held)) == len(held) and run.wire.followers(held), "a handover")
    handovers = [attempt.accepted_at - told for attempt in nexts]
    return {"join_s": at - began, "join_lag_versions": head - version, "drain_s": ended, "handover_s": max(handovers)}


async def kill_policy(run: Watched) -> dict[str, float]:
    """kill −9 of a busy replica: when its requests go on elsewhere, and what that wasted."""
    process, name = await run.newcomer("policy-new-99"), "policy-new-99"
    incarnation = await until(lambda: name in run.members and run.members[name].incarnation, f"{name} joins")
    await until(lambda: len(run.wire.open_at(incarnation)) >= 2, f"{name} is busy")
    await asyncio.sleep(0.3 * COMPLETION_TOKENS * STEP_S)
    process.kill()
    killed = time.monotonic()
    await process.wait()
    held = run.wire.open_at(incarnation)
    keys = list(held)
    nexts = await until(
        lambda: len(run.wire.followers(keys)) == len(keys) and run.wire.followers(keys), "continuations"
    )
    unsent = sum((killed - attempt.last_at) / STEP_S for attempt in held.values())
    kept = sum(attempt.reached for attempt in held.values())
    return {
        "policy_s": min(attempt.accepted_at - killed for attempt in nexts),
        "policy_all_s": max(attempt.accepted_at - killed for attempt in nexts),
        "requests": len(held),
        "tokens_kept": kept,
        "tokens_again_continued": round(max(0.0, unsent)),
        "tokens_again_regenerated": round(max(0.0, unsent) + kept),
        "prefill_tokens_continued": kept + PROMPT_TOKENS * len(held),
        "prefill_tokens_regenerated": PROMPT_TOKENS * len(held),
    }


async def kill_rollout(run: Watched) -> float:
    """Seconds from kill −9 of a rollout to the first of its tasks being played by somebody else."""
    name = "rollout-local-1"
    incarnation = run.members[name].incarnation

    def calls(*, own: bool) -> set[str]:
        """Ids of calls (task, attempt, turn) of that rollout, or of others."""
        ids = (request.split("|") for request, _ in run.wire.attempts)
        return {call for call, asker, _ in ids if asker.startswith(incarnation) == own}

    def open_calls() -> set[str]:
        ended = {r for (r, _), a in run.wire.attempts.items() if a.ended}
        return {
            r.split("|")[0] for r, _ in run.wire.attempts if r.split("|")[1].startswith(incarnation) and r not in ended
        }

    held = await until(open_calls, f"{name} works")
    os.kill(run.pid(name), signal.SIGKILL)
    killed = time.monotonic()
    held = open_calls() or held
    await until(lambda: held & calls(own=False), "a redelivered task")
    return time.monotonic() - killed


async def kill_lease(run: Watched, lease: str, number: signal.Signals) -> float:
    """Seconds from a signal to the process that leads until another holder has its lease."""
    name = run.holders[lease]
    if lease == "dataflow":
        await until(lambda: run.standby(name), "a standby")
    pid = await until(lambda: run.pid(name), f"the process of {name}")
    os.kill(pid, number)
    began = time.monotonic()
    try:
        return await until(lambda: run.taken_over(began, lease), f"a takeover of {lease}") - began
    finally:
        if number == signal.SIGSTOP:
            os.kill(pid, signal.SIGCONT)


async def life(folder: Path, *, rounds: int, only: set[str], train_s: float) -> dict[str, Any]:
    """The figures of one live run, as `elastic.py` names them."""
    results: dict[str, Any] = {}
    async with live_run(folder, train_s=train_s) as run:
        if "join" in only:
            results["join"] = [await join_and_drain(run, number) for number in range(rounds)]
        if "detect" in only:
            killed = await kill_policy(run)
            results["detect"] = {
                **killed,
                "rollout_s": await kill_rollout(run),
                "dataflow_s": await kill_lease(run, "dataflow", signal.SIGKILL),
                "dataflow_frozen_s": await kill_lease(run, "dataflow", signal.SIGSTOP),
                "trainer_s": await kill_lease(run, "trainer-solver", signal.SIGKILL),
            }
    return results
