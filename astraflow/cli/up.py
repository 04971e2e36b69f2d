"""`astraflow up`."""

import argparse
import asyncio
import os
import shlex
import sys

from astraflow.cli.arguments import Verbs, add_run_file, add_verb, listen_address


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    parser = add_verb(
        verbs,
        "up",
        help="start or continue a run on this machine and stay until it ends",
        example="astraflow up examples/tiny.toml --set policies.solver.trainer.steps=300",
    )
    add_run_file(parser)
    parser.add_argument("--listen", metavar="HOST:PORT", help="let other machines join; prints the command for them")
    parser.add_argument(
        "--leaf-listen", metavar="HOST:PORT", help="let other regions' leaf servers join; prints the command for them"
    )
    parser.add_argument("--fresh", action="store_true", help="move the old run's folder away and begin anew")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Load, then run; the return value is the exit code. Raises ConfigError, BusError."""
    listen = listen_address(args.listen) if args.listen else None
    door = listen_address(args.leaf_listen, "--leaf-listen") if args.leaf_listen else None

    from rich.console import Console

    from astraflow.actors.base.connection import TOKEN_VARIABLE
    from astraflow.bus import HubDoor
    from astraflow.node.up import UpOptions, up
    from astraflow.runfile import load

    config = load(args.run_file, args.overrides)
    options = UpOptions(
        command=shlex.join(["astraflow", *sys.argv[1:]]),
        fresh=args.fresh,
        listen=listen,
        door=HubDoor(host=door[0], port=door[1]) if door else None,
        token=os.environ.get(TOKEN_VARIABLE, ""),
    )
    return asyncio.run(up(config, options, Console()))
