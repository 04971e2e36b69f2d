"""Daemon threads for the user's blocking code: one that never returns is replaced, and nobody waits for it at the end.

It looks at nothing that the code does. Invariant: as many threads as `size` take jobs, whatever became of the others;
they are not those in which the bus hashes and compresses.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any


@dataclass(eq=False)
class ThreadJob:
    """A call in a thread. Its fields may be read once `settled` is set."""

    work: Callable[[], Any]
    within_s: float
    loop: asyncio.AbstractEventLoop
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    value: Any = None
    error: BaseException | None = None
    ended: bool = False
    lost: bool = False  # its time is over, and it goes on
    unwanted: bool = False  # nobody waits for it: not begun, it never is
    thread_id: int = 0
    timer: asyncio.TimerHandle | None = None


class Threads:
    """Args: size: threads that take jobs, at most; they start when there are jobs."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._jobs: SimpleQueue[ThreadJob] = SimpleQueue()
        self._lock = threading.Lock()  # over the counts, and over who comes first, the end of a job or of its time
        self._running = 0  # threads that take jobs
        self.lost = 0  # threads whose job has not ended in its time, and still runs

    def submit(self, work: Callable[[], Any], *, within_s: float) -> ThreadJob:
        """Begin a call as soon as a thread is free. On a running event loop."""
        job = ThreadJob(work, within_s, asyncio.get_running_loop())
        self._jobs.put(job)
        with self._lock:
            starts = self._running < self._size
            self._running += starts
        if starts:
            self._start()
        return job

    def _start(self) -> None:
        threading.Thread(target=self._main, name="user code", daemon=True).start()

    def _main(self) -> None:
        while True:
            if not self._do(self._jobs.get()):
                return

    def _do(self, job: ThreadJob) -> bool:
        """Whether the thread goes on; one that was given up has been replaced."""
        if job.unwanted:
            return True
        job.thread_id = threading.get_ident()
        _tell(job, self._watch)
        try:
            job.value = job.work()
        except BaseException as exc:  # noqa: BLE001, ASYNC103 - a value; futures lose StopIteration
            job.error = exc
        with self._lock:
            job.ended = True
            self.lost -= job.lost
        _tell(job, _settle)
        return not job.lost

    def _watch(self, job: ThreadJob) -> None:
        """On the loop: its time begins."""
        if not job.settled.is_set():
            job.timer = job.loop.call_later(job.within_s, self._give_up, job)

    def _give_up(self, job: ThreadJob) -> None:
        with self._lock:
            if job.ended:
                return
            job.lost = True
            self.lost += 1
        self._start()
        job.settled.set()


def _settle(job: ThreadJob) -> None:
    if job.timer is not None:
        job.timer.cancel()
    job.settled.set()


def _tell(job: ThreadJob, what: Callable[[ThreadJob], None]) -> None:
    """From the thread to the loop; a closed loop has nobody left who listens."""
    with contextlib.suppress(RuntimeError):
        job.loop.call_soon_threadsafe(what, job)


THREADS = Threads(16)
