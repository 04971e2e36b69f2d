"""The folder where prepared models are kept: built once, by one process, complete or not there at all.

It doesn't know what is built. Invariant: a folder that `built_folder` returns holds exactly the files that its builder
wrote, by size and sha256. This is the one place that reads `XDG_CACHE_HOME`.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from astraflow.errors import ConfigError

MARKER = ".astraflow.json"  # hidden, so that nobody ships it as a model file


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    size_bytes: int
    sha256: str


class _Marker(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    recipe: str
    files: dict[str, _File]


def cache_root(override: Path | None = None) -> Path:
    """`override`, or $XDG_CACHE_HOME/astraflow, or ~/.cache/astraflow. Not created here."""
    if override is not None:
        return override
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if Path(home).is_absolute() else Path.home() / ".cache") / "astraflow"


def built_folder(name: str, *, recipe: str, build: Callable[[Path], None], cache: Path | None = None) -> Path:
    """The cached folder `name`, built by `build(empty_folder)` if it isn't there, is damaged or has another recipe.

    Blocking: a second process waits for the first one's build. A builder that fails leaves nothing behind.

    Raises: ConfigError if the cache folder can't be written; whatever `build` raises.
    """
    root = cache_root(cache)
    folder = root / name
    if _is_complete(folder, recipe):
        return folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root / f"{name}.lock"):
            if not _is_complete(folder, recipe):
                _replace(folder, recipe, build)
    except OSError as exc:
        raise ConfigError(f"can't prepare {folder}: {exc}; set XDG_CACHE_HOME to a folder that can be written") from exc
    return folder


def run_builder(module: str, *arguments: str) -> None:
    """Run `python -m module arguments…` to its end, so that torch's memory and threads stay out of this process.

    Raises: ConfigError with the end of the child's stderr if it fails.
    """
    done = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        raise ConfigError(f"{module} failed with exit code {done.returncode}: {done.stderr.strip()[-2000:]}")


def _is_complete(folder: Path, recipe: str) -> bool:
    try:
        marker = msgspec.json.decode((folder / MARKER).read_bytes(), type=_Marker)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return marker.recipe == recipe and all(_matches(folder / name, file) for name, file in marker.files.items())


def _matches(path: Path, file: _File) -> bool:
    return path.is_file() and path.stat().st_size == file.size_bytes and _sha256(path) == file.sha256


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _replace(folder: Path, recipe: str, build: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-", ignore_cleanup_errors=True) as work:
        new, old = Path(work) / "new", Path(work) / "old"
        new.mkdir()
        build(new)
        files = {path.name: _File(path.stat().st_size, _sha256(path)) for path in sorted(new.iterdir())}
        (new / MARKER).write_bytes(msgspec.json.format(msgspec.json.encode(_Marker(recipe, files))))
        for path in new.iterdir():
            _fsync(path)
        _fsync(new)
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
        _fsync(folder.parent)
        shutil.rmtree(old, ignore_errors=True)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
