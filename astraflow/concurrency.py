"""Tasks that live exactly as long as an `async with` block.

It is not a job queue: nothing is restarted here. Invariant: when the block ends every task has ended, the block's own
exception passes unwrapped (a bare TaskGroup would wrap it), and a task that crashed ends the block with its error.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

Item = TypeVar("Item")


class Background:
    """Owns the tasks that `start` makes; at the end of the block, however it ends, they get `grace_s` to finish."""

    def __init__(self, *, grace_s: float = 0.0) -> None:
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()
        self._grace_s = grace_s

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` until it ends or the block does."""
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tasks and self._grace_s:
            await asyncio.wait(self._tasks, timeout=self._grace_s)
        for task in list(self._tasks):
            task.cancel()
        # The group must see a cancellation (it may be its own, because a task crashed), and nothing else: it would wrap
        # the block's own exception.
        cancelled = isinstance(exc, asyncio.CancelledError)
        try:
            await self._group.__aexit__(kind if cancelled else None, exc if cancelled else None, trace)
        except BaseExceptionGroup as group:
            if len(group.exceptions) == 1:
                raise group.exceptions[0] from None
            raise


async def in_parallel(items: Iterable[Item], work: Callable[[Item], Awaitable[None]], *, workers: int) -> None:
    """`work(item)` for every item, `workers` at a time. The first error ends the others and is raised unwrapped."""
    todo = iter(items)

    async def worker() -> None:
        for item in todo:
            await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(worker())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
