"""Signals to a node's process. It only calls what it was given; the drain itself is the supervisor's."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator

DRAINING = "draining: work in flight is handed back and state is saved; Ctrl-C again kills"


class Stopper:
    """What signals do. SIGTERM and Ctrl-C: first drain, then kill; before there is anything to drain, give up starting.

    SIGUSR1 is a preemption notice: it drains, and never kills.
    """

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._drain: Callable[[], None] | None = None  # None: nothing runs yet
        self._kill: Callable[[], None] | None = None
        self._sentence = DRAINING
        self._starter = asyncio.current_task()
        self.signals = 0

    def attach(self, *, drain: Callable[[], None], kill: Callable[[], None], sentence: str = DRAINING) -> None:
        """From now on there is something to drain; the sentence is said when it is."""
        self._drain, self._kill, self._sentence = drain, kill, sentence

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Handle signals of this process while inside."""
        loop = asyncio.get_running_loop()
        handlers = {signal.SIGINT: self._stop, signal.SIGTERM: self._stop, signal.SIGUSR1: self._preempt}
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)

    def _stop(self) -> None:
        self.signals += 1
        if self._drain is None or self._kill is None:
            self._give_up()
        elif self.signals == 1:
            if self._sentence:
                self._report(self._sentence)
            self._drain()
        else:
            self._kill()

    def _preempt(self) -> None:
        if self._drain is None:
            self._give_up()
        else:
            self._report("preempted by SIGUSR1: draining")
            self._drain()

    def _give_up(self) -> None:
        if self._starter:
            self._starter.cancel()
