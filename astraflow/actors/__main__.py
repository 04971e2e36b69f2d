"""`python -m astraflow.actors --role …`: one actor process, as a node starts it.

Exit codes: 0 = finished or drained, 3 = a mistake of the user (restarting won't help), 4 = fenced: another process took
over its lease, 6 = crash before it could work, 1 = crash, or the bus failed. The last line on stderr says why.
"""

import argparse
import asyncio
import contextlib
import importlib
import logging
import os
import sys
import traceback
from pathlib import Path

from astraflow.actors.base.acting import Identity, act
from astraflow.actors.base.connection import add_flags, from_flags
from astraflow.actors.base.exits import EXIT_AT_START, EXIT_FENCED, EXIT_USER
from astraflow.actors.base.leaving import leave_soon
from astraflow.actors.base.logs import log_to_stderr
from astraflow.concurrency import innermost
from astraflow.errors import BusError, ConfigError, FencedError, TrainingError
from astraflow.messages.roles import Role
from astraflow.raised import describe

_log = logging.getLogger(__name__)


def parse(argv: list[str]) -> argparse.Namespace:
    """The command line that the node writes."""
    parser = argparse.ArgumentParser(prog="python -m astraflow.actors")
    parser.add_argument("--role", required=True, choices=Role.drain_order())
    parser.add_argument("--name", required=True, help="unique in the run, e.g. rollout-local-0")
    parser.add_argument("--run", required=True)
    parser.add_argument("--folder", required=True, type=Path, help="the run folder on this machine")
    parser.add_argument("--node", default="local")
    parser.add_argument("--policy", default="")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--supervised", action="store_true", help="its node carries out orders to drain it")
    add_flags(parser)
    return parser.parse_args(argv)


async def run_role(args: argparse.Namespace, *, came_up: asyncio.Event) -> None:
    """Act in the role that the command line names; `came_up` is set once it can work."""
    who = Identity(
        run=args.run,
        region=args.region,
        role=args.role,
        name=args.name,
        node=args.node,
        folder=args.folder,
        policy=args.policy,
        threads=args.threads,
        supervised=args.supervised,
    )
    options = from_flags(args, os.environ).options()
    role = importlib.import_module(f"astraflow.actors.{args.role}.actor")
    await act(options, who, role.run, came_up=came_up)


def main(argv: list[str]) -> int:
    """Run one actor; the return value is the exit code."""
    log_to_stderr()
    runner = asyncio.Runner()
    with contextlib.suppress(ImportError):
        import uvloop

        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    args, code = parse(argv), 0
    with runner:
        code = _run(runner, args)
        leave_soon(code)
    return code


def _run(runner: asyncio.Runner, args: argparse.Namespace) -> int:
    """Its last line on stderr says why it failed; for its node that is the whole story."""
    code, why, came_up = 0, "", asyncio.Event()
    try:
        runner.run(run_role(args, came_up=came_up))
    except* (ConfigError, TrainingError) as group:
        code, why = EXIT_USER, str(innermost(group))
    except* FencedError as group:
        code, why = EXIT_FENCED, str(innermost(group))
    except* BusError as group:
        code, why = code or 1, why or str(innermost(group))
    except* SystemExit:  # nobody here ends so: it is the user's code, past everything that contains it
        _log.exception("code of yours ended this process")
        code = code or 1
    except* Exception as group:  # noqa: BLE001 - the end of the process: all of it into its log
        traceback.print_exception(group)
        code, why = code or (1 if came_up.is_set() else EXIT_AT_START), why or describe(group)
    if why:
        sys.stderr.write(f"{why}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
