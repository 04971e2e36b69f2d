"""Keeps child processes running: starts, restarts with backoff, drains in order, kills what doesn't end.

It knows nothing of the bus or of roles' meaning; `node.py` says what to run. States of the whole:

    running ──drain()──▶ draining ──all gone──▶ ended
       │  every process ended by itself ─────────▲
       └─ one failed for good ─▶ draining ───────┘
    any ──kill()──▶ every process gets SIGKILL

One child can be drained by itself; it isn't started again, and the rest goes on. With `stays` children may be added,
a child that fails for good is only told about, and "every process ended by itself" comes after `close()`.

Invariants: no child outlives `run()` or this process (PR_SET_PDEATHSIG); one task per child owns its restarts; exits
are events, nothing polls; a drain takes no longer than its grace time, whatever the number of stages.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)

EXIT_USER = 3
EXIT_FENCED = 4
"""Another process took over; a restart waits until it is needed again, so it is no loop."""
RESTART_WINDOW_S = 600.0
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.25, 15.0
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """One child. `stage` orders the drain: lower stages are told to stop, and have ended, before higher ones."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    log_file: Path
    stage: int = 0


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why the whole ended badly. `user_mistake`: the process said (exit code 3) that restarting won't help."""

    process: str
    text: str
    user_mistake: bool
    log_file: Path


@dataclass
class _Child:
    spec: ProcessSpec
    process: asyncio.subprocess.Process | None = None
    restarts: deque[float] = field(default_factory=deque)
    unwanted: asyncio.Event = field(default_factory=asyncio.Event)  # not to be started again
    drained: bool = False  # told to end
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Supervisor:
    """Runs the given processes until they have all ended.

    Args:
        grace_s: from the drain of the whole, or of one process, to SIGKILL. Each stage gets an even share of what the
            ones before it left.
        max_restarts: of one process in ten minutes before everything is drained and the outcome is a Failure.
        resume: asked when a process ended with code 0 without being told to; true = start it again.
        report: called with a sentence for people when something noteworthy happens.
        first_backoff_s: pause before the first restart in a row; it doubles up to 15 s.
        startable: awaited before a process is started again, so that what it can't do without is there.
        stays: told of a process that failed for good, in place of draining everything; None = it drains.
    """

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        *,
        grace_s: float,
        max_restarts: int,
        resume: Callable[[ProcessSpec], Coroutine[Any, Any, bool]],
        report: Callable[[str], None],
        first_backoff_s: float = FIRST_BACKOFF_S,
        startable: Callable[[], Coroutine[Any, Any, Any]] | None = None,
        stays: Callable[[Failure], None] | None = None,
    ) -> None:
        self._children = [_Child(spec) for spec in specs]
        self._grace_s = grace_s
        self._max_restarts = max_restarts
        self._resume = resume
        self._report = report
        self._first_backoff_s = first_backoff_s
        self._startable = startable
        self._stays = stays
        self._closed = asyncio.Event()  # nothing is added any more
        if stays is None:
            self._closed.set()
        self._keepers: asyncio.TaskGroup | None = None  # while run() does, as the next
        self._draining = asyncio.Event()
        self._killing = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None
        self.failure: Failure | None = None

    def pids(self) -> dict[str, int]:
        """Process ids of the children that run now."""
        return {c.spec.name: c.process.pid for c in self._children if c.process and c.process.returncode is None}

    @property
    def draining(self) -> bool:
        """Whether everything is being stopped."""
        return self._draining.is_set()

    def add(self, spec: ProcessSpec) -> None:
        """Start one more process. Only with `stays`, while `run` does; nothing happens once it is closed or drains."""
        if self._closed.is_set():
            return
        assert self._keepers is not None, "run() comes first"
        child = _Child(spec)
        self._children.append(child)
        self._keepers.create_task(self._keep(child), name=spec.name)

    def names(self) -> list[str]:
        """The processes that run, are being started, or wait for their restart, and have not been told to end."""
        return [child.spec.name for child in self._children if not child.ended.is_set() and not child.unwanted.is_set()]

    def drained(self) -> list[str]:
        """The processes that have been told to end, and those of them that have."""
        return [child.spec.name for child in self._children if child.drained]

    def close(self) -> None:
        """Nothing is added any more: `run` returns when all have ended. Idempotent."""
        self._closed.set()

    def drain(self) -> None:
        """Stop everything in order. Idempotent."""
        self.close()
        self._draining.set()
        for child in self._children:
            child.unwanted.set()

    def drain_one(self, name: str) -> bool:
        """Stop one process for good; False if there is none of that name that still runs. Only while `run` does."""
        for child in self._children:
            if child.spec.name == name and not child.drained and not child.ended.is_set():
                assert self._group is not None, "run() comes first"
                _tell_to_end(child)
                self._group.create_task(self._wait_or_kill([child], self._grace_s))
                return True
        return False

    def kill(self) -> None:
        """Stop everything now. Idempotent."""
        self.drain()
        self._killing.set()
        for child in self._children:
            _signal(child, signal.SIGKILL)

    async def run(self) -> Failure | None:
        """Start all, return when all have ended: None if all is well. Cancelling kills what still runs."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                stopper = group.create_task(self._drain_when_asked())
                async with asyncio.TaskGroup() as keepers:
                    self._keepers = keepers
                    keepers.create_task(self._closed.wait())
                    for child in self._children:
                        keepers.create_task(self._keep(child), name=child.spec.name)
                stopper.cancel()
        finally:
            self.kill()
        return self.failure

    async def _keep(self, child: _Child) -> None:
        try:
            while not child.unwanted.is_set():
                code = await self._run_once(child)
                if child.drained or self._killing.is_set():
                    return
                if code == 0:
                    if not await _unless_unwanted(child, self._resume(child.spec)):
                        return
                    self._report(f"{child.spec.name} ended before the run did; starting it again")
                elif code == EXIT_USER:
                    self._fail(child, last_line(child.spec.log_file) or "exit code 3", user_mistake=True)
                    return
                elif code == EXIT_FENCED:
                    self._report(f"{child.spec.name} was fenced off and starts again: {last_line(child.spec.log_file)}")
                else:
                    self._report(f"{child.spec.name} {describe_exit(code)}; see {child.spec.log_file}")
                await self._pause_before_restart(child, code)
                if self._startable is not None:
                    await _unless_unwanted(child, self._startable())
        finally:
            child.ended.set()

    async def _run_once(self, child: _Child) -> int:
        """Start the process and wait for its end; its exit code, negative for a signal."""
        spec = child.spec
        spec.log_file.parent.mkdir(parents=True, exist_ok=True)
        with spec.log_file.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *spec.command,
                env=spec.environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C reaches the node only, which then drains in order
                preexec_fn=_die_with(os.getpid()),
            )
        child.process = process
        log.info("process started", extra={"process": spec.name, "pid": process.pid})
        if self._killing.is_set():  # asked for while it was being started
            _signal(child, signal.SIGKILL)
        elif child.drained:
            _signal(child, signal.SIGTERM)
        try:
            return await process.wait()
        except asyncio.CancelledError:
            _signal(child, signal.SIGKILL)
            raise

    async def _pause_before_restart(self, child: _Child, code: int) -> None:
        now = time.monotonic()
        while child.restarts and child.restarts[0] < now - RESTART_WINDOW_S:
            child.restarts.popleft()
        if len(child.restarts) >= self._max_restarts:
            times = f"after {len(child.restarts)} restarts" if child.restarts else "and node.max_restarts is 0"
            self._fail(child, f"{describe_exit(code)} {times}", user_mistake=False)
            return
        pause_s = min(LONGEST_BACKOFF_S, self._first_backoff_s * 2 ** len(child.restarts))
        child.restarts.append(now)
        await _unless_unwanted(child, asyncio.sleep(pause_s))

    def _fail(self, child: _Child, text: str, *, user_mistake: bool) -> None:
        spec = child.spec
        failure = Failure(process=spec.name, text=text, user_mistake=user_mistake, log_file=spec.log_file)
        self.failure = self.failure or failure
        if self._stays is not None:
            child.unwanted.set()
            self._stays(failure)
        else:
            self.drain()

    async def _drain_when_asked(self) -> None:
        await self._draining.wait()
        deadline = time.monotonic() + self._grace_s
        stages = sorted({child.spec.stage for child in self._children})
        for number, stage in enumerate(stages):
            group = [child for child in self._children if child.spec.stage == stage and not child.ended.is_set()]
            for child in group:
                _tell_to_end(child)
            await self._wait_or_kill(group, (deadline - time.monotonic()) / (len(stages) - number))

    async def _wait_or_kill(self, children: Sequence[_Child], grace_s: float) -> None:
        try:
            async with asyncio.timeout(grace_s):
                for child in children:
                    await child.ended.wait()
        except TimeoutError:
            for child in children:
                if not child.ended.is_set():
                    self._report(f"{child.spec.name} didn't end within {grace_s:.3g} s; killed")
                    _signal(child, signal.SIGKILL)
        for child in children:
            await child.ended.wait()


async def _unless_unwanted(child: _Child, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`; None if the child becomes unwanted first, and then `work` is cancelled."""
    async with asyncio.TaskGroup() as group:
        working = group.create_task(work)
        unwanted = group.create_task(child.unwanted.wait())
        await asyncio.wait((working, unwanted), return_when=asyncio.FIRST_COMPLETED)
        working.cancel()
        unwanted.cancel()
    return None if working.cancelled() else working.result()


def _tell_to_end(child: _Child) -> None:
    child.drained = True
    child.unwanted.set()
    _signal(child, signal.SIGTERM)


def last_line(file: Path, *, tail_bytes: int = 8192) -> str:
    """The last line with text in a log file; "" if there is none."""
    return next(iter(last_lines(file, 1, tail_bytes=tail_bytes)), "")


def last_lines(file: Path, count: int, *, tail_bytes: int = 65536) -> list[str]:
    """The last lines with text in a log file."""
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - tail_bytes))
            lines = stream.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    return [line for line in lines if line.strip()][-count:]


def describe_exit(code: int) -> str:
    """`ended with exit code 1` or `was killed by SIGKILL`."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _signal(child: _Child, number: signal.Signals) -> None:
    if child.process is not None and child.process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.process.send_signal(number)


def _die_with(parent: int) -> Callable[[], None]:
    """For the child, before exec: be killed when the parent dies, even by kill −9. Linux only."""

    def prepare() -> None:
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it died before the line above
                os._exit(1)

    return prepare
