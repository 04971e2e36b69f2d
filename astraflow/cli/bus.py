"""`astraflow bus`."""

import argparse
import asyncio
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from astraflow.cli import leaf
from astraflow.cli.arguments import Verbs, add_verb, listen_address, variable
from astraflow.cli.leaf import shared_token
from astraflow.errors import BusError, ConfigError
from astraflow.paths import user_path
from astraflow.ports import host_for_others, host_port

if TYPE_CHECKING:
    from astraflow.bus import ClusterDoor, EmbeddedServer
    from astraflow.bus.secure import SecureFolder

_DEFAULT_LISTEN = "127.0.0.1:4222"


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    parser = add_verb(
        verbs,
        "bus",
        help="run a NATS server for runs that many machines share, until SIGTERM or Ctrl-C",
        example="astraflow bus --secure hub --run demo --listen 0.0.0.0:4222\n"
        "  astraflow bus --leaf nats://hub:7422 --region eu --token-file token --listen 10.0.0.5:4222",
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--secure",
        metavar="DIR",
        type=user_path,
        help="the server's folder: what is missing is made there, certificates and a key per role and run",
    )
    kind.add_argument(
        "--leaf",
        metavar="URL",
        default="",
        help="another region's server, which dials the --leaf-listen address of the hub; needs --region",
    )
    parser.add_argument(
        "--folder",
        metavar="DIR",
        type=user_path,
        help="the server's folder, without TLS: whoever has DIR/token may do everything in every run "
        "(with --leaf the default is leaf-REGION)",
    )
    parser.add_argument(
        "--run",
        dest="runs",
        metavar="NAME",
        action="append",
        default=[],
        help="with --secure: a run that may use it; may be repeated; runs of earlier starts stay; "
        "with --leaf: a run to take part in (default: all of the hub's)",
    )
    parser.add_argument("--listen", metavar="HOST:PORT", default=_DEFAULT_LISTEN, help=f"(default: {_DEFAULT_LISTEN})")
    parser.add_argument("--leaf-listen", metavar="HOST:PORT", help="let other regions' leaf servers join here")
    parser.add_argument(
        "--cluster-listen",
        metavar="HOST:PORT",
        help="be one of several equal servers, which keep three copies of everything; here it hears the others",
    )
    parser.add_argument(
        "--cluster-peers",
        metavar="HOST:PORT,…",
        help="the --cluster-listen addresses of all; they share one token (--token-file), or copies of --secure DIR",
    )
    parser.add_argument(
        "--region", default="local", help="bus.region of these runs; a leaf's own name (default: local)"
    )
    parser.add_argument(
        "--token-file",
        default=os.environ.get(variable("token_file"), ""),
        help="with --leaf: file with the hub's token, which becomes the leaf's; with --cluster-listen: with the token "
        "that its servers share; the token itself: ASTRAFLOW_TOKEN",
    )
    parser.add_argument(
        "--name",
        dest="names",
        metavar="HOST",
        action="append",
        default=[],
        help="a further name or address that clients use for this machine; goes into its certificate",
    )
    parser.add_argument(
        "--node",
        dest="nodes",
        metavar="NAME",
        action="append",
        default=[],
        help="with --secure: a machine that gets keys of its own, in credentials/RUN/nodes/NAME; may be repeated",
    )
    parser.add_argument("--files-only", action="store_true", help="make the files and start nothing (see deploy/)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prepare, then serve; the return value is the exit code. Raises ConfigError, BusError."""
    host, port = listen_address(args.listen)
    if args.leaf:
        if args.cluster_listen or args.cluster_peers:
            raise ConfigError("--cluster-listen is for a run's home; the server of another region stands alone")
        return leaf.run(args, host, port)
    if args.folder and not args.secure:
        return _run_plain(args, host, port)
    if args.secure and args.leaf_listen:
        raise ConfigError("--leaf-listen needs --folder: leaf servers of a secured hub are in deploy/README.md")
    if not args.secure or args.folder:
        raise ConfigError("give one of --secure DIR, --folder DIR and --leaf URL")
    if not args.runs:
        raise ConfigError("--secure needs --run NAME: every run gets keys of its own")

    from astraflow.bus import EmbeddedServer
    from astraflow.bus.certificates import own_names
    from astraflow.bus.secure import prepare

    names = [*own_names(host), *args.names]
    folder = prepare(args.secure, runs=args.runs, region=args.region, names=names, nodes=args.nodes)
    if args.files_only:
        sys.stdout.write(f"{folder.path} is ready; deploy/README.md says how to use it\n")
        return 0
    cluster = _cluster_of(args, secure_folder=folder.path)
    greeting = _greeting(folder, args.names[0] if args.names else host, port)
    server = EmbeddedServer(folder.path, host=host, port=port, security=folder.settings, cluster=cluster)
    return asyncio.run(_serve(server, greeting))


def _run_plain(args: argparse.Namespace, host: str, port: int) -> int:
    for flag, given in (("--run", args.runs), ("--name", args.names), ("--files-only", args.files_only)):
        if given:
            raise ConfigError(f"{flag} is for --secure; a server with a token takes any run")
    from astraflow.bus import EmbeddedServer

    cluster = _cluster_of(args)
    token = shared_token(args) if cluster else ""
    if cluster and not token and not (args.folder / "token").exists():
        raise ConfigError(
            "the servers of a cluster share one token: write it into a file (`openssl rand -hex 32 > token`), copy "
            "that to each of them, and give --token-file token"
        )
    door, greeting = leaf.door_of(args), _plain_greeting(args.folder, host, port)
    if cluster:
        greeting += (
            "(name the addresses of all servers of the cluster, with commas: any may be down when somebody joins)\n"
        )
    if door:
        greeting += leaf.hub_greeting(args.folder / "token", door)
    server = EmbeddedServer(args.folder, host=host, port=port, token=token, leaf=door, cluster=cluster)
    return asyncio.run(_serve(server, greeting))


def _cluster_of(args: argparse.Namespace, secure_folder: Path | None = None) -> "ClusterDoor | None":
    """The other servers, by --cluster-listen and --cluster-peers. Raises ConfigError."""
    from astraflow.bus import ClusterDoor

    if bool(args.cluster_listen) != bool(args.cluster_peers):
        raise ConfigError(
            "--cluster-listen and --cluster-peers belong together: this server's address, and everybody's"
        )
    if not args.cluster_listen:
        return None
    host, port = listen_address(args.cluster_listen, "--cluster-listen")
    peers = [peer.strip() for peer in args.cluster_peers.split(",")]
    for peer in peers:
        listen_address(peer, "--cluster-peers")
    return ClusterDoor(host=host, port=port, peers=peers, secure_folder=secure_folder)


async def _serve(server: "EmbeddedServer", greeting: str) -> int:
    from astraflow.concurrency import first_of

    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # a notice to drain; nodes do that, and need the server for it
    await server.start()
    try:
        sys.stdout.write(greeting)
        sys.stdout.flush()
        code = await first_of(server.wait(), stopped.wait())
        if not stopped.is_set():
            raise BusError(f"nats-server ended by itself with exit code {code}; see {server.log_file}")
    finally:
        await server.stop()
    return 0


def _greeting(folder: "SecureFolder", host: str, port: int) -> str:
    """What to put into the run file, and what to copy and run on other machines."""
    url = _address(host, port)
    lines = [f"nats-server listens on {host_port(host, port)}; its folder is {folder.path}"]
    for run_name, credentials in folder.credentials.items():
        join = ["astraflow", "node", "--join", url, "--run", run_name]
        submit = ["astraflow", "submit", "run.toml", "--url", url]
        lines += [
            f"run {run_name}: in the run file,",
            "  [bus]",
            f'  url = "{url}"',
            f'  credentials_dir = "{credentials}"',
            f'  ca_file = "{folder.ca_file}"',
            f"  on another machine, with ca.pem, observer.nk and the keys of its roles from {credentials} in keys/,",
            f"  {shlex.join([*join, '--credentials-dir', 'keys', '--ca-file', 'keys/ca.pem'])}",
            "  and without a main machine, once from here,",
            f"  {shlex.join([*submit, '--credentials-dir', str(credentials), '--ca-file', str(folder.ca_file)])}",
        ]
    return "\n".join(lines) + "\n"


def _plain_greeting(folder: Path, host: str, port: int) -> str:
    url, token = _address(host, port), ["--token-file", str(folder / "token")]
    return (
        f"nats-server listens on {host_port(host, port)}; its folder is {folder}\n"
        f"on every machine of the cluster, with a copy of {folder / 'token'}:\n"
        f"  {shlex.join(['astraflow', 'node', '--join', url, *token])}\n"
        f"and once, anywhere:\n"
        f"  {shlex.join(['astraflow', 'submit', 'run.toml', '--url', url, *token])}\n"
    )


def _address(host: str, port: int) -> str:
    """How other machines reach it; a wildcard address becomes this machine's name."""
    return f"nats://{host_port(host_for_others(host), port)}"
