"""Which runs are live on this machine, wherever their folders are: by the locks that their processes hold open.

There is no list that could be stale: /proc tells which processes have an up.lock open now. Other users' processes are
seen only by root.
"""

import os
from contextlib import suppress
from pathlib import Path

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
