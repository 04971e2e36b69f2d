"""`astraflow stop`."""

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING

from astraflow.cli.arguments import Verbs, add_verb
from astraflow.cli.where import add_where, run_bus, where

if TYPE_CHECKING:
    from astraflow.actors.base.connection import Connection


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    parser = add_verb(
        verbs,
        "stop",
        help="end a run everywhere: trainers write checkpoints and every process leaves; `up` can continue it",
        example="astraflow stop --folder runs/demo",
    )
    add_where(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Ask the run to end; the return value is the exit code. Raises ConfigError, BusError."""
    connection, name = where(args)
    ended = asyncio.run(_stop(connection, name))
    if ended:
        sys.stdout.write(f"run {name} has ended already ({ended})\n")
    else:
        sys.stdout.write(
            f"run {name} stops: checkpoints are written and every process ends; `up` or `submit` continues it\n"
        )
    return 0


async def _stop(connection: "Connection", run_name: str) -> str:
    from astraflow.messages.roles import Role
    from astraflow.node.orders import stop_run

    async with run_bus(connection, run_name, producer="stop", role=Role.ADMIN) as bus:
        return await stop_run(bus)
