"""Ends this process when the user's code holds its event loop up for too long: no deadline passes then.

It runs in a thread of its own and touches nothing of the loop. Its node starts the process anew, which then knows whose
code it was (suspects.py). Invariant: a process that gets no CPU, or was stopped, isn't ended.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable

from astraflow.actors.base.heartbeat import LoopClock
from astraflow.envs.usercode import where_of_thread

LOOK_EVERY_S = 1.0
_EXIT = 1  # a crash, for the node: it starts another process

_log = logging.getLogger(__name__)


class Watchdog:
    """Watches the running loop.

    Args:
        blame: called before the end with the task's id, "" if it isn't known, and a sentence.
        patience_s: how long the loop may be held up.
    """

    def __init__(self, blame: Callable[[str, str], None], *, patience_s: float) -> None:
        self._blame = blame
        self._patience_s = patience_s
        self._loop = asyncio.get_running_loop()
        self._clock = LoopClock(self._loop)
        self._thread_id = threading.get_ident()
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def close(self) -> None:
        self._clock.stop()
        self._closed.set()

    def _watch(self) -> None:
        held = 0  # looks in a row at which it was held up: after a pause of the whole process, there is only one
        while not self._closed.wait(min(LOOK_EVERY_S, self._patience_s / 4)):
            lag_s = self._clock.lag_s()
            held = held + 1 if lag_s > self._patience_s and self._clock.stuck_frame() else 0
            if held > 1 and not self._closed.is_set():
                self._end(lag_s)

    def _end(self, lag_s: float) -> None:
        task = asyncio.current_task(self._loop)  # it stands still: nothing changes under us
        why = f"it held the event loop up for {lag_s:.0f} s in {where_of_thread(self._thread_id)}"
        _log.critical("this process ends itself: %s", why)
        self._blame(task.get_name() if task is not None else "", why)
        logging.shutdown()
        os._exit(_EXIT)
