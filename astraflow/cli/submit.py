"""`astraflow submit`."""

import argparse
import asyncio
import json
import os
import shlex
import sys
from typing import TYPE_CHECKING, Any

from astraflow.cli.arguments import (
    CONNECTION_FLAGS,
    Verbs,
    add_connection,
    add_run_file,
    add_verb,
    connection_of,
    variable,
)
from astraflow.errors import ConfigError

if TYPE_CHECKING:
    from astraflow.actors.base.connection import Connection
    from astraflow.config import RunConfig


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    parser = add_verb(
        verbs,
        "submit",
        help="put a run onto a server for nodes to take up, and return; the nodes may be there already",
        example="astraflow submit run.toml --url nats://hub:4222 --token-file token",
    )
    add_run_file(parser)
    parser.add_argument("--url", help="the server, as `astraflow bus` prints it (default: bus.url of the run file)")
    parser.add_argument("--json", action="store_true", help="print one JSON object: run, state, incarnation, url")
    add_connection(parser, region=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check, then submit; the return value is the exit code. Raises ConfigError, BusError."""
    from rich.console import Console

    from astraflow.node.submit import submit
    from astraflow.runfile import load

    config = load(args.run_file, args.overrides)
    connection = _connection(args, config)
    state, record = asyncio.run(submit(config, connection, Console(stderr=True)))
    if args.json:
        told: dict[str, Any] = {"run": record.name, "state": state, "incarnation": record.incarnation}
        sys.stdout.write(json.dumps(told | {"url": connection.url}) + "\n")
    else:
        sys.stdout.write(_text(state, record.name, connection))
    return 0


def _connection(args: argparse.Namespace, config: "RunConfig") -> "Connection":
    """By flags and environment, else by the run file; the region is the run file's."""
    url = args.url or config.bus.url
    if not url:
        raise ConfigError("which server? give --url nats://HOST:PORT, or bus.url in the run file")
    for _, key, _ in CONNECTION_FLAGS:
        setattr(args, key, getattr(args, key) or getattr(config.bus, key))
    args.region = config.bus.region
    return connection_of(args, url)


def _text(state: str, name: str, connection: "Connection") -> str:
    given = [flag for flag in _flags(connection) if flag]
    watch = shlex.join(["astraflow", "top", "--url", connection.url, "--run", name, *given])
    first = {
        "new": f"run {name} is on {connection.url} and starts as soon as nodes are there",
        "open": f"run {name} is on {connection.url} already, with the same config; nothing is changed",
        "reopened": f"run {name} on {connection.url} goes on as soon as nodes are there",
        "finished": f"run {name} on {connection.url} has finished; --set policies.….trainer.steps=… adds to it",
    }[state]
    node = shlex.join(["astraflow", "node", "--join", connection.url, "--run", name, *given])
    return f"{first}\n  add a node:  {node}\n  watch it:    {watch}\n"


def _flags(connection: "Connection") -> list[str]:
    """How to connect in the same way, on this machine."""
    flags = []
    for flag, key, _ in CONNECTION_FLAGS:
        value = getattr(connection, key)
        flags += [flag, str(value)] if value and os.environ.get(variable(key)) != str(value) else []
    return flags + (["--region", connection.region] if connection.region != "local" else [])
