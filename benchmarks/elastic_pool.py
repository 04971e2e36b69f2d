"""Throughput of a pool of simulated replicas, all in this process: real actors and a real server, engines with a rate.

A replica is the policy actor with the toy engine, which samples `slots` tokens every `step_s`, so its speed is known.
The pool is kept saturated, and what is counted is the tokens that arrive at the requester.
"""

import asyncio
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np

from astraflow.actors.base.context import ActorContext
from astraflow.actors.policy import actor as policy
from astraflow.actors.rollout.call import Call
from astraflow.actors.rollout.generation import GenerationClient
from astraflow.actors.trainer.resume import publish_frozen
from astraflow.bus import EmbeddedServer, NatsBus, topology_of
from astraflow.config import (
    EngineSection,
    EnvSection,
    PolicySection,
    RunConfig,
    RunSection,
    SourceSection,
    to_json,
)
from astraflow.messages import ChunkKind, GenChunk, MemberState, RunRecord, Sampling

SLOTS = 4
TOKENS = 64  # of a completion
PROMPT_T = np.arange(1, 17, dtype=np.int32)


def config_of(step_s: float) -> RunConfig:
    """A run of one frozen toy policy whose engine takes `step_s` per step."""
    engine = EngineSection(kind="toy", slots=SLOTS, toy_step_s=step_s)
    return RunConfig(
        run=RunSection(name="pool"),
        policies={"solver": PolicySection(model="toy", engine=engine)},
        envs={"none": EnvSection(kind="toy")},
        sources={"none": SourceSection(env="none")},
    )


async def throughput(steps_s: Sequence[float], *, warm_up_s: float, measure_s: float) -> tuple[float, float]:
    """Tokens per second of a pool with one replica for each step time, and the sum of its replicas' own speeds."""
    rated = sum(SLOTS / step_s for step_s in steps_s)
    with tempfile.TemporaryDirectory(prefix="astraflow-pool-") as name:
        server = EmbeddedServer(Path(name))
        await server.start()
        try:
            async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
                contexts = [
                    await _context(stack, server, f"policy-pool-{n}", config_of(step_s))
                    for n, step_s in enumerate(steps_s)
                ]
                await publish_frozen(await _context(stack, server, "trainer-pool-0", config_of(1.0)), epoch=1)
                actors = [group.create_task(policy.run(ctx)) for ctx in contexts]
                while not all(ctx.state is MemberState.READY for ctx in contexts):  # noqa: ASYNC110 - a benchmark may poll
                    await asyncio.sleep(0.01)
                asker = await _context(stack, server, "rollout-pool-0", config_of(1.0))
                measured = await _measure(asker, 2 * SLOTS * len(steps_s), warm_up_s, measure_s)
                for ctx in contexts:
                    ctx.stop("drain")
                await asyncio.wait(actors)
        finally:
            await server.stop()
    return measured, rated


async def _context(stack: AsyncExitStack, server: EmbeddedServer, name: str, config: RunConfig) -> ActorContext:
    bus = await stack.enter_async_context(NatsBus.connect(server.options, topology_of(config), producer=name))
    await bus.ensure()
    record = RunRecord(name="pool", incarnation="pool", config_json=to_json(config), created_at=0.0)
    role = name.split("-", 1)[0]
    folder = server.folder
    return ActorContext(bus=bus, config=config, record=record, folder=folder, name=name, role=role, policy="solver")


async def _measure(ctx: ActorContext, concurrency: int, warm_up_s: float, measure_s: float) -> float:
    """Tokens per second that arrive while `concurrency` calls are always open."""
    sampling, tokens = Sampling(max_new_tokens=TOKENS, ignore_eos=True), 0

    async def ask(client: GenerationClient, number: int) -> None:
        count = 0
        while True:
            call = Call(id=f"{number}-{count}", policy="solver", prompt_tokens=PROMPT_T, sampling=sampling, seed=count)
            await client.generate(call)
            count += 1

    async def listen() -> None:
        nonlocal tokens
        async with ctx.bus.core.subscribe(f"{ctx.bus.topology.replies}>") as chunks:
            async for decoded in chunks:
                if isinstance(decoded.message, GenChunk) and decoded.message.kind is ChunkKind.TOKENS:
                    assert decoded.message.tokens is not None
                    tokens += len(decoded.message.tokens.data) // 4

    async with GenerationClient.open(ctx) as client, asyncio.TaskGroup() as group:
        tasks = [group.create_task(listen())]
        tasks += [group.create_task(ask(client, number)) for number in range(concurrency)]
        await asyncio.sleep(warm_up_s)
        began, before = time.monotonic(), tokens
        await asyncio.sleep(measure_s)
        rate = (tokens - before) / (time.monotonic() - began)
        for task in tasks:
            task.cancel()
    return rate
