"""An event loop on virtual time: it jumps to the next timer as soon as there is nothing else to do.

`asyncio.sleep`, `asyncio.timeout` and astraflow.clock agree in it, an hour of waiting takes no time, and the same code
runs in the same order every time. Time stands still while the loop has work, and while a thread works for it
(`asyncio.to_thread`, executors). It knows nothing of the world outside: sockets, child processes and threads that the
loop did not start are not waited for, so that what talks to those belongs on another loop.
Invariant: time passes in jumps, no further than to the next timer, and by the least that a number can show with every
turn of the loop: code that waits for `now >= then` would spin for ever where rounding left it a hair before.
"""

import asyncio
import math
import selectors
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

from astraflow import clock
from astraflow.errors import StalledError

T = TypeVar("T")
_Ts = TypeVarTuple("_Ts")

FIRST_S = 1_000.0  # monotonic time at the start: far from 0, which may mean "never"
_FIRST_WALL_S = 1_800_000_000.0
STALLED_S = 10.0  # real seconds that the loop waits for a sign from a thread when no timer is left


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """The loop and its clock in one, which is the process's clock while the loop runs."""

    def __init__(self) -> None:
        self._now_s = FIRST_S
        self._working = 0  # calls in threads
        super().__init__(_Jumping(self))

    def run_forever(self) -> None:
        with clock.installed(self):
            super().run_forever()

    def time(self) -> float:
        return self._now_s

    def monotonic(self) -> float:
        return self._now_s

    def boottime(self) -> float:
        return self._now_s

    def wall(self) -> float:
        return self._now_s - FIRST_S + _FIRST_WALL_S

    def sleep(self, seconds: float) -> None:
        """Block a thread that works for this loop until so much virtual time has passed."""
        over = threading.Event()
        self.call_soon_threadsafe(self._doze, seconds, over)
        over.wait()

    def _doze(self, seconds: float, over: threading.Event) -> None:
        self._working -= 1  # a thread that sleeps doesn't hold the time
        self.call_later(seconds, self._awake, over)

    def _awake(self, over: threading.Event) -> None:
        self._working += 1
        over.set()

    @property
    def working(self) -> bool:
        """Whether a thread works for this loop."""
        return self._working > 0

    def tick(self) -> None:
        """Let the least time pass."""
        self._now_s = math.nextafter(self._now_s, math.inf)

    def jump(self, seconds: float) -> None:
        """Let time pass."""
        self._now_s += seconds

    def run_in_executor(self, executor: Executor | None, func: Callable[[*_Ts], T], *args: *_Ts) -> asyncio.Future[T]:
        future = super().run_in_executor(executor, func, *args)
        self._working += 1
        future.add_done_callback(self._worked)
        return future

    def _worked(self, _: asyncio.Future[Any]) -> None:
        self._working -= 1


class _Jumping(selectors.BaseSelector):
    """Waits for real only where time must stand still."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self._loop = loop
        self._real = selectors.DefaultSelector()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """`timeout`: until the next timer; None = there is none."""
        self._loop.tick()
        events = self._real.select(0)
        if events or (timeout is not None and timeout <= 0):
            return events
        if self._loop.working:
            return self._real.select(None)
        if timeout is not None:
            self._loop.jump(timeout)
            return []
        if not (events := self._real.select(STALLED_S)):
            raise StalledError("nothing will ever happen on this loop: no timer is set, and no thread works for it")
        return events

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def close(self) -> None:
        self._real.close()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, on virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
