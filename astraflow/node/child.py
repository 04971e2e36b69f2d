"""One child process of a node: its start, its end, and the signals in between.

It doesn't decide when it runs; the supervisor does. Invariants: the process does not outlive this one
(PR_SET_PDEATHSIG), and what it is told while it is being started reaches it.
"""

import asyncio
import contextlib
import logging
import signal
from collections import deque
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from astraflow.concurrency import first_of
from astraflow.lifeline import dies_with_parent

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """One child. `stage` orders the drain: lower stages are told to stop, and have ended, before higher ones."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    log_file: Path
    stage: int = 0


@dataclass
class Child:
    """A process that may be started again, and what it has been told."""

    spec: ProcessSpec
    process: asyncio.subprocess.Process | None = None
    restarts: deque[float] = field(default_factory=deque)
    unwanted: asyncio.Event = field(default_factory=asyncio.Event)  # not to be started again
    drained: bool = False  # told to end
    killed: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    why: str = ""  # it failed last as it began
    _alike: int = 0  # as often as that in a row

    def fails_alike(self, why: str) -> int:
        """It has failed as it began; how often it has done so in a row. "" = it has ended in another way."""
        self._alike = self._alike + 1 if why == self.why else 1
        self.why = why
        return self._alike

    async def run(self) -> int:
        """Start the process and wait for its end; its exit code, negative for a signal."""
        spec = self.spec
        spec.log_file.parent.mkdir(parents=True, exist_ok=True)
        with spec.log_file.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *spec.command,
                env=spec.environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C reaches the node only, which then drains in order
                preexec_fn=dies_with_parent(signal.SIGKILL),
            )
        self.process = process
        log.info("process started", extra={"process": spec.name, "pid": process.pid})
        if self.killed:  # asked for while it was being started
            self.send(signal.SIGKILL)
        elif self.drained:
            self.send(signal.SIGTERM)
        try:
            return await process.wait()
        except asyncio.CancelledError:
            self.send(signal.SIGKILL)
            raise

    def send(self, number: signal.Signals) -> None:
        """A signal, if it runs."""
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)

    def kill(self) -> None:
        """End now, and never again."""
        self.killed = True
        self.send(signal.SIGKILL)

    def tell_to_end(self) -> None:
        """Drain, and don't start again."""
        self.drained = True
        self.unwanted.set()
        self.send(signal.SIGTERM)

    async def unless_unwanted(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of `work`; None if the process becomes unwanted first, and then `work` is cancelled."""
        return await first_of(work, self.unwanted.wait())
