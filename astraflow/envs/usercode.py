"""Running code of the user's own: whatever it raises is an error that names their line, and it ends nothing else.

    on_loop     a coroutine, in a task of its own      in_thread   a blocking function, in a daemon thread

Both take a deadline and come back at it, whether the code does or not: what doesn't stop when it is cancelled, or never
returns, is left behind and counted in `LOST`, by where it was. It knows no episodes and no rewards.
Invariant: a CancelledError comes out only if the caller is cancelled; SystemExit and KeyboardInterrupt never do.
"""

import asyncio
import inspect
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar, copy_context
from types import FrameType
from typing import Any, TypeVar

from astraflow.envs.threads import THREADS
from astraflow.errors import EnvError, HungError, RaisedError
from astraflow.raised import describe, entry_of, where_in

T = TypeVar("T")

GRACE_S = 2.0  # from a cancel to being left behind
_label: ContextVar[str] = ContextVar("whose code runs", default="")


class _Lost:
    """Code of this process that was left behind and still runs."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()  # referenced, or they would be collected while they wait
        self.last = ""  # where the newest one was

    @property
    def count(self) -> int:
        return len(self._tasks) + THREADS.lost

    def add(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


LOST = _Lost()


async def on_loop(work: Callable[[], Awaitable[T]], *, within_s: float, label: str = "") -> T:
    """Await what `work` returns, in a task of its own. A task group would wait for it for ever.

    Args:
        label: the task's name, and that of tasks that the code starts itself.
    Raises: HungError past the deadline; RaisedError for whatever the code raises.
    """
    context = copy_context()
    context.run(_label.set, label or "user code")
    task = asyncio.get_running_loop().create_task(_caught(work), name=label or None, context=context)
    try:
        await asyncio.wait((task,), timeout=within_s)
        if not task.done():
            where = LOST.last = _where_of_task(task)
            await _leave(task)
            raise HungError(f"not done within {within_s:g} s{f': it was in {where}' if where else ''}")
    except asyncio.CancelledError:
        await _leave(task)
        raise
    value, error = task.result()
    if error is not None:
        raise RaisedError(describe(error), error=error) from error
    return value  # type: ignore[return-value]  # there is one without an error


async def _leave(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    try:
        await asyncio.wait((task,), timeout=GRACE_S)
    finally:
        if not task.done():
            LOST.add(task)


async def _caught(work: Callable[[], Awaitable[T]]) -> tuple[T | None, BaseException | None]:
    try:
        return await work(), None
    except BaseException as exc:  # noqa: BLE001, ASYNC103 - out of a task, SystemExit would end the process
        return None, exc  # noqa: ASYNC104 - it is a value from here on


async def in_thread(work: Callable[[], T], *, within_s: float) -> T:
    """The result of a blocking function. Its time begins when a thread takes it. Raises as `on_loop` does."""
    job = THREADS.submit(work, within_s=within_s)
    try:
        await job.settled.wait()
    except asyncio.CancelledError:
        job.unwanted = True
        raise
    if job.lost:
        where = LOST.last = where_of_thread(job.thread_id)
        raise HungError(f"not done within {within_s:g} s{f': it was in {where}' if where else ''}")
    if job.error is not None:
        raise RaisedError(describe(job.error), error=job.error) from job.error
    return job.value  # type: ignore[no-any-return]


async def call(function: Callable[..., Any], *args: Any, within_s: float, label: str = "") -> Any:
    """Call a function of the user's, `async` or not: a coroutine runs on the loop, anything else in a thread."""
    if inspect.iscoroutinefunction(function):
        return await on_loop(lambda: function(*args), within_s=within_s, label=label)
    result = await in_thread(lambda: function(*args), within_s=within_s)
    if inspect.isawaitable(result):  # a plain function that returns a coroutine
        return await on_loop(lambda: result, within_s=within_s, label=label)
    return result


def contain_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """From now on, a task that the user's code starts can't end the process either: `exit()` is an error of that task.

    An event loop lets SystemExit and KeyboardInterrupt out of any task, past whoever awaits it.
    """

    def start(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> "asyncio.Task[Any]":
        context = options.get("context")
        label = _label.get() if context is None else context.get(_label, "")
        if not label or not inspect.iscoroutine(work):
            return asyncio.Task(work, loop=loop, **options)
        options.setdefault("name", None)
        options["name"] = options["name"] or label
        return asyncio.Task(_contained(work), loop=loop, **options)

    loop.set_task_factory(start)


async def _contained(work: Coroutine[Any, Any, T]) -> T:
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as exc:
        raise EnvError(describe(exc)) from exc


# --- where it is ---


def _where_of_task(task: "asyncio.Task[Any]") -> str:
    """The line of the user's code in which a suspended task waits; "" if it is in none."""
    stack = []
    coroutine: Any = task.get_coro()
    while coroutine is not None:
        frame: FrameType | None = getattr(coroutine, "cr_frame", None)
        if frame is not None:
            stack.append(entry_of(frame))
        coroutine = getattr(coroutine, "cr_await", None)
    return where_in(stack)


def where_of_thread(thread_id: int) -> str:
    """The line of the user's code that a thread is in; "" if it is in none."""
    stack = []
    frame = sys._current_frames().get(thread_id)
    while frame is not None:
        stack.append(entry_of(frame))
        frame = frame.f_back
    return where_in(stack[::-1])
