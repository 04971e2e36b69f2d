"""`astraflow bus`."""

import argparse
import asyncio
import shlex
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from astraflow.cli.arguments import Verbs, add_verb, listen_address
from astraflow.errors import BusError

if TYPE_CHECKING:
    from astraflow.bus.secure import SecureFolder

DEFAULT_LISTEN = "127.0.0.1:4222"


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    parser = add_verb(
        verbs,
        "bus",
        help="run a NATS server with TLS and separate rights for every role, until SIGTERM or Ctrl-C",
        example="astraflow bus --secure hub --run demo --listen 0.0.0.0:4222",
    )
    parser.add_argument(
        "--secure",
        metavar="DIR",
        type=Path,
        required=True,
        help="the server's folder: what is missing is made there, certificates and a key per role and run",
    )
    parser.add_argument(
        "--run",
        dest="runs",
        metavar="NAME",
        action="append",
        required=True,
        help="a run that may use it; may be repeated; runs of earlier starts stay",
    )
    parser.add_argument("--listen", metavar="HOST:PORT", default=DEFAULT_LISTEN, help=f"(default: {DEFAULT_LISTEN})")
    parser.add_argument("--region", default="local", help="bus.region of these runs (default: local)")
    parser.add_argument(
        "--name",
        dest="names",
        metavar="HOST",
        action="append",
        default=[],
        help="a further name or address that clients use for this machine; goes into its certificate",
    )
    parser.add_argument("--files-only", action="store_true", help="make the files and start nothing (see deploy/)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prepare, then serve; the return value is the exit code. Raises ConfigError, BusError."""
    host, port = listen_address(args.listen)

    from astraflow.bus.certificates import own_names
    from astraflow.bus.secure import prepare

    folder = prepare(args.secure, runs=args.runs, region=args.region, names=[*own_names(host), *args.names])
    if args.files_only:
        sys.stdout.write(f"{folder.path} is ready; deploy/README.md says how to use it\n")
        return 0
    return asyncio.run(_serve(folder, host, port, args.names))


async def _serve(folder: "SecureFolder", host: str, port: int, names: list[str]) -> int:
    from astraflow.bus import EmbeddedServer

    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    server = EmbeddedServer(folder.path, host=host, port=port, security=folder.settings)
    await server.start()
    try:
        sys.stdout.write(_greeting(folder, names[0] if names else host, port))
        sys.stdout.flush()
        async with asyncio.TaskGroup() as group:
            ended = group.create_task(server.wait())
            stopping = group.create_task(stopped.wait())
            await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            stopping.cancel()
        if not stopped.is_set():
            raise BusError(f"nats-server ended by itself with exit code {ended.result()}; see {server.log_file}")
    finally:
        await server.stop()
    return 0


def _greeting(folder: "SecureFolder", host: str, port: int) -> str:
    """What to put into the run file, and what to copy and run on other machines."""
    host = socket.getfqdn() if host in ("0.0.0.0", "::") else host
    url = f"nats://{host}:{port}"
    lines = [f"nats-server listens on {host}:{port}; its folder is {folder.path}"]
    for run_name, credentials in folder.credentials.items():
        join = ["astraflow", "node", "--join", url, "--run", run_name]
        lines += [
            f"run {run_name}: in the run file,",
            f'  bus = {{ url = "{url}", credentials_dir = "{credentials}", ca_file = "{folder.ca_file}" }}',
            f"  on another machine, with ca.pem, observer.nk and the keys of its roles from {credentials} in keys/,",
            f"  {shlex.join([*join, '--credentials-dir', 'keys', '--ca-file', 'keys/ca.pem'])}",
        ]
    return "\n".join(lines) + "\n"
