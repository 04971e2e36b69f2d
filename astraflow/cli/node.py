"""`astraflow node`."""

import argparse
import asyncio
from pathlib import Path

from astraflow.cli.arguments import Verbs, add_connection, add_verb, connection_of


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    parser = add_verb(
        verbs,
        "node",
        help="join a run that another machine has started, and work for it until it ends",
        example="astraflow node --join nats://hub:4222 --run demo --token-file token --role rollout",
    )
    parser.add_argument("--join", metavar="URL", required=True, help="the run's server, as `up --listen` prints it")
    parser.add_argument("--run", dest="run_name", metavar="NAME", required=True, help="the run's name")
    parser.add_argument(
        "--role",
        action="append",
        default=[],
        help="rollout or policy:NAME; may be repeated (default: a policy process for every policy, and rollouts)",
    )
    parser.add_argument("--threads", type=int, default=0, help="cores to use (default: all that it may)")
    parser.add_argument("--folder", type=Path, default=Path("runs"), help="where logs go (default: runs)")
    add_connection(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Join; the return value is the exit code. Raises ConfigError, BusError."""
    from rich.console import Console

    from astraflow.actors.join import join

    return asyncio.run(
        join(
            connection_of(args, args.join),
            run=args.run_name,
            roles=args.role,
            folder=args.folder,
            threads=args.threads,
            console=Console(),
        )
    )
