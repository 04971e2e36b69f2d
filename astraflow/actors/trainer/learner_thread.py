"""One thread for one learner: torch keeps worker pools and memory per calling thread, so all calls come from the same.

It schedules nothing: calls run in the order in which they are made.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class LearnerThread:
    """Runs a learner's blocking calls, one at a time."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="learner")

    async def __call__(self, function: Callable[..., T], *args: Any) -> T:
        """The function's result. Cancelling the caller does not stop the function."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *args)

    def close(self) -> None:
        """Let the thread end once it is idle."""
        self._executor.shutdown(wait=False)
