"""The end of a process in which some task won't end: users' code may swallow every cancel."""

import asyncio
import logging
import os
import sys

LEAVE_S = 1.0


def leave_behind(runner: asyncio.Runner, code: int) -> None:
    """End the process now if a task is left that doesn't end when it is cancelled; closing a loop waits for all."""
    loop = runner.get_loop()
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if not left or not loop.run_until_complete(asyncio.wait(left, timeout=LEAVE_S))[1]:
        return
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
