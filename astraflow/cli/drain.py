"""`astraflow drain`."""

import argparse
import asyncio
import getpass
import socket
import sys
from typing import TYPE_CHECKING

from astraflow import clock
from astraflow.cli.arguments import Verbs, add_verb
from astraflow.cli.where import add_where, run_bus, where
from astraflow.errors import BusError, ConfigError

if TYPE_CHECKING:
    from astraflow.actors.base.connection import Connection
    from astraflow.view.run_view import RunView

_MARGIN_S = 10.0
"""Over the grace time: a record of a process that was killed has to expire."""


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    parser = add_verb(
        verbs,
        "drain",
        help="make an actor or a whole node hand back its work and leave for good",
        example="astraflow drain policy-gpu7-3f2a-0 --folder runs/demo",
    )
    parser.add_argument("target", metavar="ACTOR|NODE", help="a name as `status` shows it")
    parser.add_argument("--no-wait", action="store_true", help="don't wait until it has left")
    add_where(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Order the drain and wait for it; the return value is the exit code. Raises ConfigError, BusError."""
    connection, name = where(args)
    asyncio.run(_drain(connection, name, args.target, wait=not args.no_wait))
    return 0


async def _drain(connection: "Connection", run_name: str, target: str, *, wait: bool) -> None:
    from astraflow.actors.base.members import left
    from astraflow.messages.roles import Role
    from astraflow.node.node import UP_NODE
    from astraflow.node.orders import order_drain
    from astraflow.view.status import read_view

    async with run_bus(connection, run_name, producer="drain", role=Role.USER) as bus:
        view = await read_view(bus)
        _check(view, target)
        assert view.config is not None
        started, patience_s = clock.monotonic(), view.config.node.grace_s + _MARGIN_S
        await order_drain(bus, target, by=f"{getpass.getuser()} on {socket.gethostname()}")
        if not wait or (target == UP_NODE and not view.config.bus.url):  # its server leaves with it
            sys.stdout.write(f"{target} is told to drain\n")
            return
        try:
            async with asyncio.timeout(patience_s):
                await left(bus, lambda member: target in (member.actor, member.node))
        except TimeoutError as exc:
            raise BusError(f"{target} hasn't left within {patience_s:g} s; look at `astraflow status`") from exc
    sys.stdout.write(f"{target} has left after {clock.monotonic() - started:.1f} s\n")


def _check(view: "RunView", target: str) -> None:
    """Raises ConfigError, with what there is, if nobody has that name."""
    from astraflow.named import nearest

    names = {member.node for member in view.members.values()} | set(view.members)
    if target not in names:
        raise ConfigError(f"no actor and no node of this run is called {target!r}{nearest(target, names)}")
