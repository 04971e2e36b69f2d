"""The end of a process that users' code holds up: a task that swallows every cancel, a thread that never returns.

Only for after the work: whatever must be kept is stored by then.
"""

import logging
import os
import sys
import threading

_LEAVE_S = 5.0  # for tasks to end, threads to be joined, the interpreter to close


def leave_soon(code: int) -> None:
    """End the process with this exit code, if it hasn't ended by itself meanwhile."""

    def end() -> None:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    timer = threading.Timer(_LEAVE_S, end)
    timer.daemon = True
    timer.start()
