"""`astraflow status`."""

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from astraflow.cli.arguments import Verbs, add_connection, add_verb, connection_of
from astraflow.errors import BusError, ConfigError

if TYPE_CHECKING:
    from astraflow.actors.node import Connection
    from astraflow.actors.status import Status


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    parser = add_verb(
        verbs,
        "status",
        help="show who is in a run, what each waits for, queues, versions and the last errors",
        example="astraflow status --folder runs/demo --json",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--folder", type=Path, help="the run's folder (default: the one live run in ./runs)")
    where.add_argument("--url", help="the run's server; needs --run")
    parser.add_argument("--run", dest="run_name", metavar="NAME", default="", help="the run's name, with --url")
    parser.add_argument("--json", action="store_true", help="the same under stable keys")
    add_connection(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the status once; the return value is the exit code. Raises ConfigError, BusError."""
    if args.url and not args.run_name:
        raise ConfigError("--url needs --run NAME: a server may hold several runs")
    connection, name = (connection_of(args, args.url), args.run_name) if args.url else _of_folder(args.folder)

    import msgspec

    from astraflow.actors.status import render, to_json

    status = asyncio.run(_read(connection, name))
    text = msgspec.json.format(msgspec.json.encode(to_json(status)), indent=2).decode() if args.json else render(status)
    sys.stdout.write(text.rstrip("\n") + "\n")
    return 0


async def _read(connection: "Connection", run_name: str) -> "Status":
    from astraflow.actors.join import fetch_record
    from astraflow.actors.status import read_status
    from astraflow.bus import Bus, topology_of
    from astraflow.config import from_json

    record = await fetch_record(connection, run_name)
    async with Bus.connect(connection.options(), topology_of(from_json(record.config_json)), producer="status") as bus:
        return await read_status(bus)


def _of_folder(path: Path | None) -> tuple["Connection", str]:
    from astraflow.actors.node import Connection
    from astraflow.actors.runfolder import RunFolder

    folder = RunFolder(path or _live_folder())
    owner = folder.owner()
    if owner is None:
        raise ConfigError(f"{folder.path} is not a run folder: it has no up.lock")
    if not folder.live():
        raise BusError(f"run {owner.run} is not running; `{owner.command}` continues it or shows its results")
    if not owner.url:
        raise BusError(f"run {owner.run} is still starting (process {owner.pid}); try again in a moment")
    token_file = Path(owner.token_file) if owner.token_file else None
    connection = Connection(
        url=owner.url, region=owner.region, token_file=token_file, credentials_file=owner.credentials_file
    )
    return connection, owner.run


def _live_folder() -> Path:
    from astraflow.actors.runfolder import RunFolder

    live = [lock.parent for lock in sorted(Path("runs").glob("*/up.lock")) if RunFolder(lock.parent).live()]
    if len(live) == 1:
        return live[0]
    if live:
        raise ConfigError(f"several runs are live: {', '.join(map(str, live))}; choose one with --folder")
    raise ConfigError("no run is live in ./runs; name one with --folder, or --url and --run")
