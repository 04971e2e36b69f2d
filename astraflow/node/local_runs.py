"""The runs of this machine: which are live, wherever their folders are, where a run of some name is, and the bus of one
that has ended, opened again to be read. It starts no actor.

There is no list that could be stale: /proc tells which processes have an up.lock open now. Other users' processes are
seen only by root.
Invariant: nobody else runs in a folder while its store is open, and afterwards its lock file says what it said before.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec

from astraflow.actors.base.connection import Connection
from astraflow.bus import EmbeddedServer
from astraflow.errors import ConfigError
from astraflow.named import nearest
from astraflow.node.runfolder import LOCK_NAME, Owner, RunFolder


def live_here() -> list[tuple[Owner, RunFolder]]:
    """Runs that are live on this machine, by folder."""
    folders = {lock.parent for process in Path("/proc").glob("[0-9]*") for lock in _open_locks(process)}
    found = [(folder.owner(), folder) for folder in map(RunFolder, sorted(folders)) if folder.live()]
    return [(owner, folder) for owner, folder in found if owner is not None]


def folder_of(run: str, *, beside: Path) -> RunFolder:
    """The folder of a run on this machine: a live one; else one that has ended, among those in `beside`.

    Raises: ConfigError, with what there is, unless exactly one fits.
    """
    live = live_here()
    fitting = [folder for owner, folder in live if owner.run == run] or _ended(run, beside)
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        folders = ", ".join(str(folder.path) for folder in fitting)
        raise ConfigError(f"several runs on this machine are called {run}: {folders}; choose one with --folder")
    hint = nearest(run, {owner.run for owner, _ in live}) if live else "; none is live"
    raise ConfigError(f"no run on this machine is called {run!r}{hint}; for a run elsewhere give --url too")


@asynccontextmanager
async def reopened(folder: RunFolder, *, command: str) -> AsyncIterator[tuple[Connection, str]]:
    """The connection and the name of the run in `folder`, from a server that lives as long as the context.

    Raises: ConfigError if the folder is in use or holds no store; BusError.
    """
    owner = folder.owner()
    if owner is None:
        raise ConfigError(f"{folder.path} is not a run folder: it has no up.lock")
    if not folder.nats.is_dir():
        raise ConfigError(f"{folder.path} holds no store: the run is on an external server; use --url and --run")
    with folder.lock(msgspec.structs.replace(owner, pid=os.getpid(), command=command, url="")) as locked:
        server = EmbeddedServer(folder.nats)
        try:
            await server.start()
            yield Connection(url=server.url, region=owner.region, token_file=server.token_file), owner.run
        finally:
            await server.stop()
            locked.write(owner)


def _ended(run: str, beside: Path) -> list[RunFolder]:
    folders = [RunFolder(lock.parent) for lock in sorted(beside.glob(f"*/{LOCK_NAME}"))]
    return [folder for folder in folders if (owner := folder.owner()) and owner.run == run]


def _open_locks(process: Path) -> list[Path]:
    """Lock files of run folders that a process has open; none of one that has ended, or that we may not look into."""
    files = []
    with suppress(OSError):
        for entry in (process / "fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                files.append(os.readlink(entry))
    return [Path(file) for file in files if file.endswith(f"/{LOCK_NAME}")]
