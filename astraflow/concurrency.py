"""Tasks that live exactly as long as a block or a call, and waiting for one of several things.

    Background      tasks beside a block
    until_stopped   a task group that lives until an event
    in_parallel     the same work on many items, some at a time
    first_of        the result of some work, unless something else comes first
    wait_at_most    an event, for at most so long
    innermost       the first error inside nested groups

It is not a job queue: nothing is restarted here. Invariant: when the block or call ends every task has ended, and an
error passes unwrapped (a bare TaskGroup would wrap it), but for `until_stopped`, whose tasks are a TaskGroup's.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
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
                raise group.exceptions[0] from group.exceptions[0].__cause__
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
        raise errors.exceptions[0] from errors.exceptions[0].__cause__


async def first_of(work: Awaitable[Item], *others: Awaitable[object]) -> Item | None:
    """Wait until `work` or one of the others has ended, and cancel the rest.

    Returns: what `work` came to; None if it had not ended. An error of any of them is raised.
    """

    async def awaited(one: Awaitable[Any]) -> Any:
        return await one

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(awaited(one)) for one in (work, *others)]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors.exceptions[0].__cause__
    result: Item | None = None if tasks[0].cancelled() else tasks[0].result()
    return result


async def wait_at_most(event: asyncio.Event, seconds: float) -> bool:
    """Wait for the event, but not longer than `seconds`; whether it is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


class _StoppedError(Exception):
    """Ends a task group from inside."""


@asynccontextmanager
async def until_stopped(stopping: asyncio.Event, draining: Callable[[], None]) -> AsyncIterator[asyncio.TaskGroup]:
    """A task group for the block to fill. It lives until `stopping` is set; then `draining` is called and its tasks
    are cancelled. A task that crashed ends it as it ends any group."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
            await stopping.wait()
            draining()
            raise _StoppedError
    except* _StoppedError:
        pass


def innermost(error: BaseException) -> BaseException:
    """The first error inside nested groups; an error that is no group is its own."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
