"""`astraflow agent`."""

import argparse
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from astraflow.cli.arguments import Verbs, add_connection, add_verb, connection_of
from astraflow.errors import ConfigError
from astraflow.paths import user_path

if TYPE_CHECKING:
    from astraflow.envs.agents import Agent


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    parser = add_verb(
        verbs,
        "agent",
        help="join a live run with agents from your own file, and play their environments' tasks until it ends",
        example="astraflow agent my_agent.py --join nats://hub:4222 --run demo --token-file token",
    )
    parser.add_argument("file", type=user_path, metavar="FILE.py", help="holds functions with @af.agent(env=…)")
    parser.add_argument("--join", metavar="URL", required=True, help="the run's server, as `up --listen` prints it")
    parser.add_argument("--run", dest="run_name", metavar="NAME", required=True, help="the run's name")
    parser.add_argument("--name", default="", help="how this actor's name ends (default: the machine's name)")
    parser.add_argument("--folder", type=user_path, default=Path("runs"), help="where files go, if any (default: runs)")
    add_connection(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Play until the run ends or a signal comes; the return value is the exit code. Raises ConfigError, BusError."""
    from contextlib import suppress
    from functools import partial

    from astraflow.actors.base.acting import Identity, act
    from astraflow.actors.base.leaving import leave_soon
    from astraflow.actors.base.logs import log_to_stderr
    from astraflow.actors.rollout import actor as rollout
    from astraflow.messages.roles import Role
    from astraflow.node.join import node_name

    agents = _agents_in(args.file)
    log_to_stderr()
    node = node_name(args.name)
    who = Identity(
        run=args.run_name,
        region=args.region,
        role=Role.ROLLOUT,
        name=f"rollout-agent-{node}",
        node=node,
        folder=args.folder / f"{args.run_name}-{node}",
    )
    options = connection_of(args, args.join).options(Role.ROLLOUT)
    with asyncio.Runner() as runner:
        try:
            runner.run(act(options, who, partial(rollout.run, agents=agents)))
            leave_soon(0)
        finally:
            with suppress(OSError):  # it holds something, or never was
                who.folder.rmdir()
    return 0


def _agents_in(file: Path) -> "list[Agent]":
    """The agents of a Python file. Raises ConfigError if it can't be run, has none, or two for one environment."""
    from astraflow.envs.agents import Agent
    from astraflow.named import load_file

    found = [value for value in vars(load_file(file)).values() if isinstance(value, Agent)]
    if not found:
        raise ConfigError(f"{file} has no agent; decorate an async function with @af.agent(env='…')")
    envs = [each.env for each in found]
    for env in envs:
        if envs.count(env) > 1:
            names = ", ".join(each.name for each in found if each.env == env)
            raise ConfigError(f"{file} has several agents for environment {env}: {names}; keep one per environment")
    return found
