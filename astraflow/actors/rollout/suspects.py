"""Which episodes were in work when this rollout's process died: what keeps dying with it is played alone, then never.

An environment can take its process down (a crash in native code, memory, `os._exit`), and its task is then redelivered
for ever. It judges nothing else about a task. A small file beside the logs says what is in work and survives the
process, not the machine. States of a task, by how often it was in work when the process died:

    0, 1 ── played with others      2 ── played alone      3 ── poison, and its group's other suspects with it

What is known to have held the process up (watchdog.py) is poison at once, and nobody else is suspected for it.
Invariant: a task that was never in work at such a moment is played as ever, and one whose episode ends is forgotten.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

_ALONE_AFTER = 2  # deaths
_POISON_AFTER = 3
MAX_BYTES = 1 << 20  # of the file, before it is written anew


class Suspects:
    """The file of one rollout. `open` first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._deaths: dict[str, int] = {}  # by task id; only of tasks that were in work at one
        self._guilty: dict[str, str] = {}  # by task id: what it did
        self._in_work: set[str] = set()
        self._alone = asyncio.Lock()
        self._nobody = asyncio.Event()
        self._descriptor = -1

    def open(self) -> None:
        """Take up what the process before left. Blocking, for a moment; without a writable disk nobody is suspected."""
        self._nobody.set()
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._deaths, in_work, self._guilty, blamed = _read(self._path)
            for task in in_work if not blamed else ():
                self._deaths[task] = self._deaths.get(task, 0) + 1
            self._write_anew()

    def close(self) -> None:
        """A process that ends by itself accuses nobody."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
            self._path.parent.rmdir()  # unless other rollouts' files are there

    def verdict(self, task: str) -> str:
        """Why a task isn't played any more; "" if it is."""
        if task in self._guilty:
            return f"poison: {self._guilty[task]}, and its process was ended"
        deaths = self._deaths.get(task, 0)
        if deaths >= _POISON_AFTER:
            return f"poison: the rollout process died {deaths} times while it was played, the last time alone"
        if deaths >= _ALONE_AFTER and any(
            n >= _POISON_AFTER and _group(t) == _group(task) for t, n in self._deaths.items()
        ):
            return f"poison: the rollout process died {deaths} times while it was played, and of its group's others"
        return ""

    @asynccontextmanager
    async def playing(self, task: str) -> AsyncIterator[None]:
        """Note that `task` is in work; alone, if it is a suspect."""
        if self._deaths.get(task, 0) < _ALONE_AFTER:
            async with self._alone:  # nobody is played beside a suspect
                self._begin(task)
            try:
                yield
            finally:
                self._end(task)
            return
        async with self._alone:
            await self._nobody.wait()
            self._begin(task)
            try:
                yield
            finally:
                self._end(task)

    def blame(self, task: str, why: str) -> None:
        """This process ends now, because of one task in work. From any thread."""
        if task in self._in_work:
            self._append(f"! {task} {' '.join(why.split())}\n")

    def _begin(self, task: str) -> None:
        self._in_work.add(task)
        self._nobody.clear()
        self._append(f"+ {task}\n")

    def _end(self, task: str) -> None:
        self._in_work.discard(task)
        self._deaths.pop(task, None)
        self._guilty.pop(task, None)
        if not self._in_work:
            self._nobody.set()
        self._append(f"- {task}\n")

    def _append(self, line: str) -> None:
        if self._descriptor < 0:
            return
        with suppress(OSError):
            os.write(self._descriptor, line.encode())
            if os.lseek(self._descriptor, 0, os.SEEK_CUR) > MAX_BYTES:
                self._write_anew()

    def _write_anew(self) -> None:
        """Not synced: it has to outlive the process only."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        lines = [f"{deaths} {task}\n" for task, deaths in self._deaths.items()]
        lines += [f"? {task} {why}\n" for task, why in self._guilty.items()]
        lines += [f"+ {task}\n" for task in sorted(self._in_work)]
        temporary = self._path.with_name(f".{self._path.name}")
        self._descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        os.write(self._descriptor, "".join(lines).encode())
        temporary.replace(self._path)


def _read(path: Path) -> tuple[dict[str, int], set[str], dict[str, str], bool]:
    """Deaths by task, what is in work, who is guilty, and whether of the last end; the file may end in mid-line."""
    deaths: dict[str, int] = {}
    in_work: set[str] = set()
    guilty: dict[str, str] = {}
    blamed = False
    if not path.exists():
        return deaths, in_work, guilty, blamed
    for line in path.read_text("utf-8", "replace").splitlines(keepends=True):
        kind, _, task = line.removesuffix("\n").partition(" ")
        if not line.endswith("\n") or not task:
            continue
        if kind == "+":
            in_work.add(task)
        elif kind == "-":
            in_work.discard(task)
            deaths.pop(task, None)
            guilty.pop(task, None)
        elif kind in ("!", "?"):
            name, _, why = task.partition(" ")
            guilty[name] = why
            blamed = blamed or kind == "!"
        elif kind.isdecimal():
            deaths[task] = int(kind)
    return deaths, in_work, guilty, blamed


def _group(task: str) -> str:
    return task.rpartition("/")[0]
