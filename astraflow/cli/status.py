"""`astraflow status`."""

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING

from astraflow.cli.arguments import Verbs, add_verb
from astraflow.cli.where import add_where, run_bus, where

if TYPE_CHECKING:
    from astraflow.actors.base.connection import Connection
    from astraflow.actors.view.status import Status


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    parser = add_verb(
        verbs,
        "status",
        help="show who is in a run, what each waits for, queues, versions and the last errors",
        example="astraflow status --folder runs/demo --json",
    )
    add_where(parser)
    parser.add_argument("--json", action="store_true", help="the same under stable keys")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the status once; the return value is the exit code. Raises ConfigError, BusError."""
    connection, name = where(args)

    import msgspec

    from astraflow.actors.view.status import render, to_json

    status = asyncio.run(_read(connection, name))
    text = msgspec.json.format(msgspec.json.encode(to_json(status)), indent=2).decode() if args.json else render(status)
    sys.stdout.write(text.rstrip("\n") + "\n")
    return 0


async def _read(connection: "Connection", run_name: str) -> "Status":
    from astraflow.actors.view.status import read_status

    async with run_bus(connection, run_name, producer="status") as bus:
        return await read_status(bus)
