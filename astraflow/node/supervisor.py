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
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astraflow import clock
from astraflow.actors.base.exits import EXIT_AT_START, EXIT_FENCED, EXIT_USER, describe_exit, last_line
from astraflow.lifeline import EXIT_TOGETHER
from astraflow.node.child import Child, ProcessSpec

RESTART_WINDOW_S = 600.0
ALIKE_AT_START = 3
_FIRST_BACKOFF_S, _LONGEST_BACKOFF_S = 0.25, 15.0


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why the whole ended badly. `told`: the text is the process's own sentence, so its log has no more to say."""

    process: str
    text: str
    told: bool
    log_file: Path


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
        tell: awaited once for the first failure, before anything is drained for it: who writes the results must know.
        ranks_lost: awaited with a sentence when a process ended because one that it computes with did; None = `report`.
    """

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        *,
        grace_s: float,
        max_restarts: int,
        resume: Callable[[ProcessSpec], Coroutine[Any, Any, bool]],
        report: Callable[[str], None],
        first_backoff_s: float = _FIRST_BACKOFF_S,
        startable: Callable[[], Coroutine[Any, Any, Any]] | None = None,
        stays: Callable[[Failure], None] | None = None,
        tell: Callable[[Failure], Coroutine[Any, Any, None]] | None = None,
        ranks_lost: Callable[[str], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        self._children = [Child(spec) for spec in specs]
        self._grace_s = grace_s
        self._max_restarts = max_restarts
        self._resume = resume
        self._report = report
        self._ranks_lost = ranks_lost
        self._first_backoff_s = first_backoff_s
        self._startable = startable
        self._stays = stays
        self._tell = tell
        self._closed = asyncio.Event()  # nothing is added any more
        if stays is None:
            self._closed.set()
        self._keepers: asyncio.TaskGroup | None = None  # while run() does, as the next
        self._draining = asyncio.Event()
        self._at_once = False
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
        child = Child(spec)
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

    def drain(self, within_s: float | None = None) -> None:
        """Stop everything in order; what is said first holds.

        `within_s`: the time that there is. If it is less than the grace, all are told at once, in place of stage by
        stage, so that a checkpoint begins now.
        """
        if within_s is not None and within_s < self._grace_s and not self.draining:
            self._grace_s, self._at_once = within_s, True
        self.close()
        self._draining.set()
        for child in self._children:
            child.unwanted.set()

    def drain_one(self, name: str) -> bool:
        """Stop one process for good; False if there is none of that name that still runs. Only while `run` does."""
        for child in self._children:
            if child.spec.name == name and not child.drained and not child.ended.is_set():
                assert self._group is not None, "run() comes first"
                child.tell_to_end()
                self._group.create_task(self._wait_or_kill([child], self._grace_s))
                return True
        return False

    def kill(self) -> None:
        """Stop everything now. Idempotent."""
        self.drain()
        for child in self._children:
            child.kill()

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

    async def _keep(self, child: Child) -> None:
        try:
            while not child.unwanted.is_set():
                code = await child.run()
                if child.drained or child.killed:
                    return
                if code == 0:
                    if not await child.unless_unwanted(self._resume(child.spec)):
                        return
                    self._report(f"{child.spec.name} ended before the run did; starting it again")
                elif code == EXIT_USER:
                    await self._fail(child, last_line(child.spec.log_file) or "exit code 3", told=True)
                    return
                elif code == EXIT_FENCED:
                    self._report(f"{child.spec.name} was fenced off and starts again: {last_line(child.spec.log_file)}")
                elif code == EXIT_AT_START and child.fails_alike(last_line(child.spec.log_file)) >= ALIKE_AT_START:
                    await self._fail(child, f"failed {ALIKE_AT_START} times alike as it began: {child.why}", told=True)
                    return
                elif code == EXIT_TOGETHER:
                    text = f"{child.spec.name} starts again with its ranks: {last_line(child.spec.log_file)}"
                    if self._ranks_lost is not None:
                        await self._ranks_lost(text)
                    else:
                        self._report(text)
                else:
                    why = f": {child.why}" if code == EXIT_AT_START else ""
                    self._report(f"{child.spec.name} {describe_exit(code)}{why}; see {child.spec.log_file}")
                if code != EXIT_AT_START:
                    child.fails_alike("")
                await self._pause_before_restart(child, code)
                if self._startable is not None:
                    await child.unless_unwanted(self._startable())
        finally:
            child.ended.set()

    async def _pause_before_restart(self, child: Child, code: int) -> None:
        now = clock.monotonic()
        while child.restarts and child.restarts[0] < now - RESTART_WINDOW_S:
            child.restarts.popleft()
        if len(child.restarts) >= self._max_restarts:
            times = f"after {len(child.restarts)} restarts" if child.restarts else "and node.max_restarts is 0"
            await self._fail(child, f"{describe_exit(code)} {times}", told=False)
            return
        pause_s = min(_LONGEST_BACKOFF_S, self._first_backoff_s * 2 ** len(child.restarts))
        child.restarts.append(now)
        await child.unless_unwanted(asyncio.sleep(pause_s))

    async def _fail(self, child: Child, text: str, *, told: bool) -> None:
        spec = child.spec
        failure = Failure(process=spec.name, text=text, told=told, log_file=spec.log_file)
        if self.failure is None:
            self.failure = failure
            if self._tell is not None:
                await self._tell(failure)
        if self._stays is not None:
            child.unwanted.set()
            self._stays(failure)
        else:
            self.drain()

    async def _drain_when_asked(self) -> None:
        await self._draining.wait()
        deadline = clock.monotonic() + self._grace_s
        if self._at_once:
            for child in self._children:
                child.tell_to_end()
            await self._wait_or_kill([child for child in self._children if not child.ended.is_set()], self._grace_s)
            return
        stages = sorted({child.spec.stage for child in self._children})
        for number, stage in enumerate(stages):
            group = [child for child in self._children if child.spec.stage == stage and not child.ended.is_set()]
            for child in group:
                child.tell_to_end()
            await self._wait_or_kill(group, (deadline - clock.monotonic()) / (len(stages) - number))

    async def _wait_or_kill(self, children: Sequence[Child], grace_s: float) -> None:
        try:
            async with asyncio.timeout(grace_s):
                for child in children:
                    await child.ended.wait()
        except TimeoutError:
            for child in children:
                if not child.ended.is_set():
                    self._report(f"{child.spec.name} didn't end within {grace_s:.3g} s; killed")
                    child.kill()
        for child in children:
            await child.ended.wait()
