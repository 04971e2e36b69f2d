"""`astraflow status`."""

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING

from astraflow.cli.arguments import Verbs, add_verb
from astraflow.cli.where import add_where, run_bus, where

if TYPE_CHECKING:
    from astraflow.actors.base.connection import Connection
    from astraflow.view.status import Status


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    parser = add_verb(
        verbs,
        "status",
        help="show what is stuck in a run, who waits for what, versions, queues and the last errors",
        example="astraflow status --folder runs/demo --json",
    )
    add_where(parser)
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument(
        "-v",
        "--all",
        dest="everything",
        action="store_true",
        help="every actor, wait, event and group that isn't trained",
    )
    shown.add_argument("--json", action="store_true", help="all of it under stable keys")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the status once; the return value is the exit code. Raises ConfigError, BusError."""
    connection, name = where(args)

    import msgspec

    from astraflow.view.status import to_json
    from astraflow.view.status_text import render

    status = asyncio.run(_read(connection, name))
    text = render(status, everything=args.everything)
    if args.json:
        text = msgspec.json.format(msgspec.json.encode(to_json(status)), indent=2).decode()
    sys.stdout.write(text.rstrip("\n") + "\n")
    return 0


async def _read(connection: "Connection", run_name: str) -> "Status":
    from astraflow.view.status import read_status

    async with run_bus(connection, run_name, producer="status") as bus:
        return await read_status(bus)
