"""`python -m astraflow.actors --role …`: one actor process, as a node starts it.

Exit codes: 0 = finished or drained, 3 = a mistake of the user (restarting won't help), 4 = fenced: another process took
over its lease, 1 = crash.
"""

import argparse
import asyncio
import contextlib
import importlib
import logging
import os
import signal
import sys
from pathlib import Path

from astraflow.actors.base.connection import add_flags, from_flags
from astraflow.actors.base.context import ActorContext
from astraflow.actors.base.heartbeat import Heartbeat
from astraflow.actors.base.logs import log_to_stderr
from astraflow.actors.node.supervisor import EXIT_FENCED, EXIT_USER
from astraflow.bus import Bus, BusOptions, Topology, topology_of
from astraflow.config import from_json
from astraflow.errors import BusError, ConfigError, FencedError, TrainingError
from astraflow.messages import Drain, MemberState, RunRecord

ROLES = ("policy", "rollout", "dataflow", "trainer", "recorder")

_log = logging.getLogger("astraflow.actors")


def parse(argv: list[str]) -> argparse.Namespace:
    """The command line that the node writes."""
    parser = argparse.ArgumentParser(prog="python -m astraflow.actors")
    parser.add_argument("--role", required=True, choices=ROLES)
    parser.add_argument("--name", required=True, help="unique in the run, e.g. rollout-local-0")
    parser.add_argument("--run", required=True)
    parser.add_argument("--folder", required=True, type=Path, help="the run folder on this machine")
    parser.add_argument("--node", default="local")
    parser.add_argument("--policy", default="")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--supervised", action="store_true", help="its node carries out orders to drain it")
    add_flags(parser)
    return parser.parse_args(argv)


async def read_run_record(options: BusOptions, *, run: str, region: str, name: str) -> RunRecord:
    """The run's record from the bus. Raises ConfigError if there is no such run."""
    bare = Topology(run=run, region=region, envs=(), policies=())
    async with Bus.connect(options, bare, producer=name) as bus:
        entry = await bus.kv_get("run")
        if entry is None or not isinstance(entry.message, RunRecord):
            raise ConfigError(f"no run {run!r} on {options.url}; start it with `astraflow up` or `astraflow submit`")
        return entry.message


async def watch_run(ctx: ActorContext) -> None:
    """End the actor when the run's record says that the run is to end."""
    async with contextlib.aclosing(ctx.bus.kv_watch("run")) as updates:
        async for update in updates:
            if isinstance(update.message, RunRecord) and update.message.stop_requested:
                ctx.stop(update.message.stop_requested)
                return


async def follow_drains(ctx: ActorContext) -> None:
    """Without a node: end the actor when it is told to drain. What was ordered before it started isn't for it."""
    before, told = {}, False
    async with contextlib.aclosing(ctx.bus.kv_watch("drain.")) as updates:
        async for update in updates:
            told = told or not update.key
            if not isinstance(update.message, Drain) or update.message.target not in (ctx.name, ctx.node):
                continue
            if not told:
                before[update.key] = update.revision
            elif before.get(update.key) != update.revision:
                ctx.stop("drain")
                return


async def act(args: argparse.Namespace) -> None:
    """Connect, announce, run the role, say goodbye."""
    options = from_flags(args, os.environ).options()
    record = await read_run_record(options, run=args.run, region=args.region, name=args.name)
    config = from_json(record.config_json)
    async with Bus.connect(options, topology_of(config), producer=args.name) as bus:
        await bus.ensure()
        ctx = ActorContext(
            bus=bus,
            config=config,
            record=record,
            folder=args.folder,
            name=args.name,
            role=args.role,
            node=args.node,
            policy=args.policy,
            threads=args.threads,
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ctx.stop, "drain")
        role = importlib.import_module(f"astraflow.actors.{args.role}.actor")
        async with Heartbeat(ctx, options), asyncio.TaskGroup() as group:
            watchers = [group.create_task(watch_run(ctx))]
            if not args.supervised:
                watchers.append(group.create_task(follow_drains(ctx)))
            await role.run(ctx)
            ctx.set_state(MemberState.DRAINING)
            for watcher in watchers:
                watcher.cancel()
        _log.info("actor ended", extra={"actor": ctx.name, "reason": ctx.stop_reason or "done"})


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The innermost first error of nested groups."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def main(argv: list[str]) -> int:
    """Run one actor; the return value is the exit code."""
    log_to_stderr()
    runner = asyncio.Runner()
    with contextlib.suppress(ImportError):
        import uvloop

        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    code = 0
    try:
        with runner:
            runner.run(act(parse(argv)))
    except* (ConfigError, TrainingError) as group:
        sys.stderr.write(f"{first_error(group)}\n")
        code = EXIT_USER
    except* FencedError as group:
        sys.stderr.write(f"{first_error(group)}\n")
        code = EXIT_FENCED
    except* BusError as group:
        sys.stderr.write(f"{first_error(group)}\n")
        code = 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
