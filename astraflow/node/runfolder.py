"""The folder of one run on this machine: its files, and the lock that keeps a second `up` away.

    <folder>/<name>/   up.lock   run.toml   logs/   nats/ (store and token)   … and what recorder and trainers write

Invariant: whoever holds the lock is alive; the kernel drops it with the process, so nothing stale can block a start.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from astraflow import clock
from astraflow.errors import ConfigError

_SPARE_BYTES = 64 << 20
LOCK_NAME = "up.lock"


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Who runs in a folder and how to reach the run's bus. Content of up.lock."""

    pid: int
    command: str
    run: str
    started_at: float
    region: str = "local"
    url: str = ""  # "" until the server is up
    token_file: str = ""
    credentials_file: str = ""
    credentials_dir: str = ""
    ca_file: str = ""


class RunFolder:
    """Paths in a run folder; nothing is created before `lock()`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock_file = path / LOCK_NAME
        self.config_file = path / "run.toml"
        self.summary_file = path / "summary.json"
        self.logs = path / "logs"
        self.nats = path / "nats"

    @contextlib.contextmanager
    def lock(self, owner: Owner) -> Iterator["LockedFolder"]:
        """Hold the folder. Raises ConfigError, naming pid and command, if it is held; OSError of the disk."""
        self.path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.lock_file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                raise ConfigError(self._held()) from exc
            locked = LockedFolder(self, descriptor)
            locked.write(owner)
            yield locked
        finally:
            os.close(descriptor)

    def owner(self) -> Owner | None:
        """Who wrote the lock last, alive or not; None if nobody did."""
        try:
            return msgspec.json.decode(self.lock_file.read_bytes(), type=Owner)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def live(self) -> bool:
        """Whether some process holds the folder now."""
        try:
            descriptor = os.open(self.lock_file, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def _held(self) -> str:
        owner = self.owner()
        who = f"process {owner.pid} (`{owner.command}`)" if owner else "another process"
        return f"run folder {self.path} is in use by {who}; stop it first, or give this run another name"


class LockedFolder:
    """A run folder that this process holds."""

    def __init__(self, folder: RunFolder, descriptor: int) -> None:
        self.folder = folder
        self._descriptor = descriptor

    def write(self, owner: Owner) -> None:
        """Say who holds the folder and where its bus is."""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, msgspec.json.encode(owner), 0)

    def move_away(self) -> Path | None:
        """Rename everything in the folder, except the lock, into `<name>.old-<time>`; None if there was nothing."""
        old = [entry for entry in self.folder.path.iterdir() if entry != self.folder.lock_file]
        if not old:
            return None
        now = time.strftime("%Y%m%d-%H%M%S", time.localtime(clock.wall()))
        target = self.folder.path.with_name(f"{self.folder.path.name}.old-{now}")
        target.mkdir()
        for entry in old:
            entry.rename(target / entry.name)
        return target


def check_space(path: Path, needed_bytes: int, *, purpose: str) -> None:
    """Raises ConfigError if the disk of `path` has less than `needed_bytes` and a little spare."""
    free = shutil.disk_usage(path).free
    if free < needed_bytes + _SPARE_BYTES:
        raise ConfigError(
            f"run folder {path} has {free / 1e9:.2f} GB free, but {purpose} needs about"
            f" {(needed_bytes + _SPARE_BYTES) / 1e9:.2f} GB; free some space or set run.folder to another disk"
        )


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn the disk's refusals into sentences. Raises ConfigError for a full, read-only or forbidden folder."""
    try:
        yield
    except OSError as exc:
        reasons = {
            errno.ENOSPC: "the disk is full; free some space",
            errno.EDQUOT: "the disk quota is used up; free some space",
            errno.EROFS: "the disk is read-only",
            errno.EACCES: "permission denied",
            errno.EPERM: "permission denied",
            errno.ENOTDIR: "a part of this path is a file, not a folder",
            errno.EEXIST: "there is a file of that name",
        }
        if exc.errno not in reasons:
            raise
        raise ConfigError(
            f"run folder {path}: {reasons[exc.errno]} ({exc.filename or path}), or set run.folder to another place"
        ) from exc
