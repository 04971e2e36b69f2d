"""Which live run a verb is about: by its folder or name on this machine, or by its server and name from anywhere."""

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from astraflow.cli.arguments import add_connection, connection_of
from astraflow.errors import BusError, ConfigError
from astraflow.paths import user_path

if TYPE_CHECKING:
    from astraflow.actors.base.connection import Connection
    from astraflow.bus import Bus
    from astraflow.messages.roles import Role
    from astraflow.node.runfolder import RunFolder

_RUNS = Path("runs")


def add_where(parser: argparse.ArgumentParser) -> None:
    """--folder, or --run, or --url and --run, and how to connect."""
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--folder", type=user_path, help="the run's folder (default: the one live run in ./runs)")
    place.add_argument("--url", help="the run's server, if it isn't on this machine; needs --run")
    parser.add_argument(
        "--run",
        dest="run_name",
        metavar="NAME",
        default="",
        help="the run's name; without --url a run on this machine, wherever its folder is",
    )
    add_connection(parser)


def where(args: argparse.Namespace) -> tuple["Connection", str]:
    """Connection and name of the run. Raises ConfigError, and BusError if it isn't live."""
    from astraflow.node.runfolder import RunFolder

    if not args.url:
        return _of_folder(_folder(args) or RunFolder(_live_folder()))
    if not args.run_name:
        raise ConfigError("--url needs --run NAME: a server may hold several runs")
    return connection_of(args, args.url), args.run_name


@asynccontextmanager
async def run_bus(
    connection: "Connection", run_name: str, *, producer: str, role: "Role | None" = None
) -> AsyncIterator["Bus"]:
    """The bus of a run that is there. `role`: whose key; None = an observer's. Raises ConfigError, BusError."""
    from astraflow.bus import NatsBus, topology_of
    from astraflow.config import from_json
    from astraflow.messages.roles import Role
    from astraflow.node.record import fetch_record

    role = role or Role.OBSERVER
    options = connection.options(role)
    record = await fetch_record(connection, run_name, role)
    topology = topology_of(from_json(record.config_json), region=connection.region)
    async with NatsBus.connect(options, topology, producer=producer) as bus:
        yield bus


@asynccontextmanager
async def stored_run(args: argparse.Namespace, *, command: str) -> AsyncIterator[tuple["Connection", str]]:
    """Like `where`, and also of a run that has ended, by --folder or --run: its store is opened meanwhile.

    Raises: ConfigError, BusError.
    """
    from astraflow.node.local_runs import reopened

    folder = None if args.url else _folder(args)
    if folder is None or folder.live():
        yield where(args)
        return
    async with reopened(folder, command=command) as opened:
        yield opened


def _folder(args: argparse.Namespace) -> "RunFolder | None":
    """The folder that --folder or --run names; None: neither is given. Raises ConfigError."""
    from astraflow.node.local_runs import folder_of
    from astraflow.node.runfolder import RunFolder

    if args.folder is None:
        return folder_of(args.run_name, beside=_RUNS) if args.run_name else None
    folder = RunFolder(args.folder)
    owner = folder.owner()
    if args.run_name and owner is not None and owner.run != args.run_name:
        raise ConfigError(f"{args.folder} is the folder of run {owner.run}, not of {args.run_name}; give one of them")
    return folder


def _of_folder(folder: "RunFolder") -> tuple["Connection", str]:
    from astraflow.actors.base.connection import Connection

    owner = folder.owner()
    if owner is None:
        raise ConfigError(f"{folder.path} is not a run folder: it has no up.lock")
    if not folder.live():
        raise BusError(f"run {owner.run} is not running; `{owner.command}` continues it or shows its results")
    if not owner.url:
        raise BusError(f"run {owner.run} is still starting (process {owner.pid}); try again in a moment")
    return Connection.of(owner, url=owner.url), owner.run


def _live_folder() -> Path:
    from astraflow.node.local_runs import live_here
    from astraflow.node.runfolder import LOCK_NAME, RunFolder

    live = [lock.parent for lock in sorted(_RUNS.glob(f"*/{LOCK_NAME}")) if RunFolder(lock.parent).live()]
    if len(live) == 1:
        return live[0]
    if live:
        raise ConfigError(f"several runs are live: {', '.join(map(str, live))}; choose one with --folder or --run")
    elsewhere = ", ".join(f"{owner.run} in {folder.path}" for owner, folder in live_here())
    there_is = f" (elsewhere on this machine: {elsewhere})" if elsewhere else ""
    raise ConfigError(f"no run is live in ./runs{there_is}; name one with --run or --folder, or --url and --run")
