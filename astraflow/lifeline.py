"""Child processes that end when their parent does, even by kill −9 (Linux only; elsewhere they are left to themselves).

It doesn't start processes: what it returns is for `preexec_fn`.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
EXIT_TOGETHER = 7
"""Of a process that computed together with others, one of which is gone: all end and start anew together."""
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def dies_with_parent(number: signal.Signals) -> Callable[[], None]:
    """For the child, before exec: get signal `number` when this process dies, and ignore SIGUSR1, as its children will.

    Slurm sends a preemption's SIGUSR1 to every process of a step, and it kills whoever isn't prepared. The node is, and
    drains the others.
    """
    parent = os.getpid()

    def prepare() -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, number)
            if os.getppid() != parent:  # it died before the line above
                os._exit(1)

    return prepare
