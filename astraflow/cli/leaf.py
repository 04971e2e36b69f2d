"""`astraflow bus --leaf`: a region's nats-server, joined to the hub by one outbound connection, and its keeper."""

import argparse
import asyncio
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from astraflow.cli.arguments import listen_address
from astraflow.errors import ConfigError
from astraflow.paths import user_path
from astraflow.ports import host_for_others, host_port

if TYPE_CHECKING:
    from astraflow.bus import EmbeddedServer, HubDoor

_RESTARTS = 10  # of the nats-server in ten minutes


def door_of(args: argparse.Namespace) -> "HubDoor | None":
    """Where a hub lets leaf servers in, by --leaf-listen. Raises ConfigError."""
    from astraflow.bus import HubDoor

    if not args.leaf_listen:
        return None
    host, port = listen_address(args.leaf_listen, "--leaf-listen")
    return HubDoor(host=host, port=port)


def hub_greeting(token_file: Path, door: "HubDoor") -> str:
    """What to run in another region."""
    url = f"nats://{host_port(host_for_others(door.host), door.port)}"
    command = ["astraflow", "bus", "--leaf", url, "--region", "REGION"]
    return (
        f"and for another region, with its own name and a copy of {token_file}:\n"
        f"  {shlex.join([*command, '--token-file', str(token_file)])}\n"
    )


def run(args: argparse.Namespace, host: str, port: int) -> int:
    """Serve until SIGTERM or Ctrl-C; the return value is the exit code. Raises ConfigError, BusError."""
    from astraflow.bus import HUB_DOMAIN, EmbeddedServer, LeafDoor, Topology

    if args.region in (HUB_DOMAIN, "local"):
        raise ConfigError(f"--region {args.region} is the hub's; give this region a name of its own, e.g. --region eu")
    Topology(run="any", region=args.region, envs=(), policies=())
    secret = shared_token(args)
    if not secret:
        raise ConfigError("a leaf needs the hub's token: --token-file FILE, or the token itself in ASTRAFLOW_TOKEN")
    door = LeafDoor(url=args.leaf, region=args.region, token=secret)
    folder = args.folder or Path(f"leaf-{args.region}")
    server = EmbeddedServer(folder, host=host, port=port, token=secret, leaf=door)
    return asyncio.run(_serve(server, args.region, args.runs, args.leaf))


def shared_token(args: argparse.Namespace) -> str:
    """The secret of --token-file or ASTRAFLOW_TOKEN, which several servers share; "" = neither is given."""
    from astraflow.actors.base.connection import TOKEN_VARIABLE, Connection

    token_file = user_path(args.token_file) if args.token_file else None
    token = os.environ.get(TOKEN_VARIABLE, "") if token_file is None else ""
    return Connection(url="", region=args.region, token_file=token_file, token=token).options().token


async def _serve(server: "EmbeddedServer", region: str, runs: list[str], hub: str) -> int:
    from astraflow.actors.region.keeper import keep_region
    from astraflow.node.server import embedded_server

    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with embedded_server(server, max_restarts=_RESTARTS, report=_say):
        _say(f"leaf of region {region} on {server.url}, joined to {hub}; its folder is {server.folder}")

        def ready(run: str) -> None:
            _say(
                f"run {run} is here; to join it from a machine of this region, copy {server.token_file} there and run:"
            )
            _say(f"  {_join_command(server, run, region)}")

        async with asyncio.TaskGroup() as group:
            keeping = group.create_task(keep_region(server.options, region=region, runs=runs, report=_say, ready=ready))
            await stopped.wait()
            keeping.cancel()
    return 0


def _join_command(server: "EmbeddedServer", run: str, region: str) -> str:
    url = f"nats://{host_port(host_for_others(server.host), server.port)}"
    command = ["astraflow", "node", "--join", url, "--run", run, "--region", region]
    return shlex.join([*command, "--token-file", str(server.token_file)])


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
