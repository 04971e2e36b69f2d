"""One actor process from connect to goodbye, whatever its role. It reads no command line and starts no process."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from astraflow.actors.base.context import ActorContext
from astraflow.actors.base.heartbeat import Heartbeat
from astraflow.actors.base.run_record import other_region, read_record
from astraflow.bus import BusOptions, NatsBus, Topology, topology_of, wiring
from astraflow.config import from_json
from astraflow.errors import ConfigError, FencedError
from astraflow.messages import Drain, MemberState, RunRecord

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Who an actor is. `name` is unique in the run; `folder` is the run folder on this machine."""

    run: str
    region: str
    role: str
    name: str
    node: str
    folder: Path
    policy: str = ""
    threads: int = 1
    supervised: bool = False  # its node carries out orders to drain it


async def act(
    options: BusOptions,
    who: Identity,
    work: Callable[[ActorContext], Awaitable[None]],
    *,
    came_up: asyncio.Event | None = None,
) -> None:
    """Connect, announce, run the role, say goodbye. Raises what the role raises; ConfigError without such a run.

    Args:
        came_up: set once the actor can work; None = nobody wants to know.
    """
    record = await _read_record(options, who)
    config = from_json(record.config_json)
    async with NatsBus.connect(options, topology_of(config, region=who.region), producer=who.name) as bus:
        await bus.ensure()
        ctx = ActorContext(
            bus=bus,
            config=config,
            record=record,
            folder=who.folder,
            name=who.name,
            role=who.role,
            node=who.node,
            policy=who.policy,
            threads=who.threads,
            came_up=came_up or asyncio.Event(),
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ctx.stop, "drain")
        async with Heartbeat(ctx, options), asyncio.TaskGroup() as group:
            watchers = [group.create_task(_watch_run(ctx))]
            if not who.supervised:
                watchers.append(group.create_task(follow_drains(ctx)))
            await work(ctx)
            ctx.set_state(MemberState.DRAINING)
            for watcher in watchers:
                watcher.cancel()
        _log.info("actor ended", extra={"actor": ctx.name, "reason": ctx.stop_reason or "done"})


async def _read_record(options: BusOptions, who: Identity) -> RunRecord:
    bare = Topology(run=who.run, region=who.region, envs=(), policies=())
    async with NatsBus.connect(options, bare, producer=who.name) as bus:
        record = await read_record(bus)
        if record is None:
            raise ConfigError(
                f"there is no run {who.run!r} on {options.url}{other_region(bus)}; start it with `astraflow up` or "
                "`astraflow submit`"
            )
        return record


async def _watch_run(ctx: ActorContext) -> None:
    """End the actor when the run's record says that the run is to end."""
    async with contextlib.aclosing(ctx.bus.kv.watch(wiring.RUN.key())) as updates:
        async for update in updates:
            if isinstance(update.message, RunRecord) and update.message.stop_requested:
                ctx.stop(update.message.stop_requested)
                return
            if update.key and update.message is None and ctx.role == "dataflow":  # who may write it, and has it
                revision = update.revision if update.unreadable else 0
                with contextlib.suppress(FencedError):
                    await ctx.bus.kv.put(wiring.RUN.key(), ctx.record, expected_revision=revision)


async def follow_drains(ctx: ActorContext) -> None:
    """Without a node: end the actor when it is told to drain. What was ordered before it started isn't for it."""
    before, told = {}, False
    async with contextlib.aclosing(ctx.bus.kv.watch(wiring.DRAIN.prefix)) as updates:
        async for update in updates:
            told = told or not update.key
            if not isinstance(update.message, Drain) or update.message.target not in (ctx.name, ctx.node):
                continue
            if not told:
                before[update.key] = update.revision
            elif before.get(update.key) != update.revision:
                ctx.stop("drain")
                return
