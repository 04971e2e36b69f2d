"""Actor contexts on a real bus or on one in memory, for tests that run one actor's parts in process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import msgspec

from astraflow.actors.base.context import ActorContext
from astraflow.bus import Bus, EmbeddedServer, NatsBus, Topology, topology_of
from astraflow.bus.memory import MemoryBus, MemoryServer
from astraflow.config import (
    BusSection,
    EngineSection,
    EnvSection,
    PolicySection,
    RunConfig,
    RunSection,
    SourceSection,
    TrainerSection,
    to_json,
)
from astraflow.messages import RunRecord

CONFIG = RunConfig(
    run=RunSection(name="test"),
    policies={
        "solver": PolicySection(
            model="toy",
            engine=EngineSection(kind="toy", slots=4, toy_step_s=0.01),
            trainer=TrainerSection(steps=3, learner="toy"),
        )
    },
    envs={"game": EnvSection(kind="toy")},
    sources={"game": SourceSection(env="game")},
    bus=BusSection(silence_s=0.5, ack_wait_s=1.0, request_ttl_s=20.0),
)


Server: TypeAlias = EmbeddedServer | MemoryServer


def connected(server: Server, topology: Topology, *, producer: str) -> AbstractAsyncContextManager[Bus]:
    """A bus on either kind of server."""
    if isinstance(server, MemoryServer):
        return MemoryBus.connect(server, topology, producer=producer)
    return NatsBus.connect(server.options, topology, producer=producer)


@asynccontextmanager
async def context(
    server: Server, folder: Path, *, role: str, config: RunConfig = CONFIG, name: str = ""
) -> AsyncIterator[ActorContext]:
    """A context whose bus has its streams; its actor is told to stop at the end."""
    name = name or f"{role}-test-0"
    async with connected(server, topology_of(config), producer=name) as bus:
        await bus.ensure()
        record = RunRecord(name="test", incarnation="inc", config_json=to_json(config), created_at=0.0)
        ctx = ActorContext(bus=bus, config=config, record=record, folder=folder, name=name, role=role, policy="solver")
        yield ctx
        ctx.stop("drain")


@asynccontextmanager
async def running(*actors: "asyncio._CoroutineLike[None]") -> AsyncIterator[None]:
    """Run coroutines while inside; they are cancelled at the end, and their errors are raised."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(actor) for actor in actors]
        yield
        for task in tasks:
            task.cancel()


def with_bus(**fields: float) -> RunConfig:
    """CONFIG with other bus settings."""
    return msgspec.structs.replace(CONFIG, bus=msgspec.structs.replace(CONFIG.bus, **fields))
