"""`astraflow node`."""

import argparse
import asyncio
import os
from pathlib import Path

from astraflow.cli.arguments import Verbs, add_connection, add_verb, connection_of
from astraflow.paths import user_path, user_path_text


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    parser = add_verb(
        verbs,
        "node",
        help="join a run, take the roles that it needs, and work for it until it ends",
        example="astraflow node --join nats://hub:4222 --token-file token",
    )
    parser.add_argument(
        "--join", metavar="URL", required=True, help="the run's server, as `up --listen` and `bus` print it"
    )
    parser.add_argument(
        "--run",
        dest="run_name",
        metavar="NAME",
        default="",
        help="the run's name; waits until it is submitted (default: the only run that is open)",
    )
    parser.add_argument(
        "--role",
        action="append",
        default=[],
        help="only rollout, policy:NAME, trainer:NAME, dataflow or recorder; may be repeated (default: whatever is "
        "needed and fits this machine, also what is missing later because others died)",
    )
    parser.add_argument("--name", default="", help="how this node's name begins (default: the machine's name)")
    parser.add_argument("--threads", type=int, default=0, help="cores to use (default: all that it may)")
    parser.add_argument(
        "--folder",
        type=user_path,
        default=Path("runs"),
        help="where logs, checkpoints and results go; may be shared with other nodes (default: runs)",
    )
    parser.add_argument(
        "--quiet",
        action="store_true",
        default=os.environ.get("SLURM_PROCID", "0") != "0",
        help="say what this node does, not how the run goes (so under srun, but for its first task)",
    )
    notice = parser.add_argument_group("preemption", "what makes it drain, besides SIGTERM and SIGUSR1")
    notice.add_argument("--preempt", choices=("aws", "gcp", "azure"), default="", help="this cloud's metadata says so")
    notice.add_argument("--preempt-file", metavar="PATH", default="", help="this file appears")
    notice.add_argument("--preempt-command", metavar="CMD", default="", help="this shell command succeeds")
    notice.add_argument("--preempt-every", metavar="S", type=float, default=5.0, help="pause between its runs (5)")
    notice.add_argument("--grace", metavar="S", type=float, default=0.0, help="time to drain (node.grace_s of the run)")
    add_connection(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Join; the return value is the exit code. Raises ConfigError, BusError."""
    from rich.console import Console

    from astraflow.node.join import JoinOptions, join
    from astraflow.node.preemption import Preemption

    options = JoinOptions(
        run=args.run_name,
        roles=args.role,
        folder=args.folder,
        name=args.name,
        threads=args.threads,
        grace_s=args.grace,
        quiet=args.quiet,
        preemption=Preemption(
            file=user_path_text(args.preempt_file),
            command=args.preempt_command,
            command_every_s=args.preempt_every,
            cloud=args.preempt,
        ),
    )
    return asyncio.run(join(connection_of(args, args.join), options, Console()))
