"""`astraflow top`."""

import argparse
import asyncio
import signal
from typing import TYPE_CHECKING

from astraflow.cli.arguments import Verbs, add_verb
from astraflow.cli.where import add_where, run_bus, where

if TYPE_CHECKING:
    from rich.console import Console

    from astraflow.actors.base.connection import Connection
    from astraflow.bus import Bus


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    parser = add_verb(
        verbs,
        "top",
        help="watch a run live, from any machine, until it ends or Ctrl-C",
        example="astraflow top --url nats://hub:4222 --run demo --token-file token",
    )
    add_where(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Watch; the return value is the exit code. Raises ConfigError, BusError."""
    connection, name = where(args)

    from rich.console import Console

    asyncio.run(_watch(connection, name, Console()))
    return 0


async def _watch(connection: "Connection", run_name: str, console: "Console") -> None:
    from astraflow.view.live import live_view

    over = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    async with run_bus(connection, run_name, producer="top") as bus, asyncio.TaskGroup() as group:
        ending = group.create_task(until_ended(bus, over))
        await live_view(bus, console, over)
        ending.cancel()


async def until_ended(bus: "Bus", over: asyncio.Event) -> None:
    """Set `over` when the run ends."""
    from contextlib import aclosing

    from astraflow.bus import wiring
    from astraflow.messages import RunRecord

    async with aclosing(bus.kv.watch(wiring.RUN.key())) as updates:
        async for update in updates:
            if isinstance(update.message, RunRecord) and update.message.stop_requested:
                break
    over.set()
