"""Running code of the user's own: whatever it raises is an error that names their line, and it ends nothing else.

    on_loop     a coroutine, in a task of its own      in_thread   a blocking function, in a daemon thread

Both take a deadline and come back at it, whether the code does or not: what doesn't stop when it is cancelled, or never
returns, is left behind and counted in `LOST`, by where it was. It knows no episodes and no rewards.
Invariant: a CancelledError comes out only if the caller is cancelled; SystemExit and KeyboardInterrupt never do.
"""

import asyncio
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextvars import ContextVar, copy_context
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from astraflow.envs.threads import THREADS
from astraflow.errors import EnvError, HungError, RaisedError

T = TypeVar("T")

GRACE_S = 2.0  # from a cancel to being left behind
_MAX_CHARS = 400  # of what an exception says

_STDLIB = sysconfig.get_path("stdlib")
_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"
PACKAGES = "site-packages"
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


# --- who raised it, and where ---


def leaves(exc: BaseException) -> Iterator[BaseException]:
    """The exceptions that a group holds, however deep; of any other, itself."""
    if isinstance(exc, BaseExceptionGroup):
        for each in exc.exceptions:
            yield from leaves(each)
    else:
        yield exc


def describe(exc: BaseException, leaf: BaseException | None = None) -> str:
    """An exception and the line of the user's code that raised it, in one line of at most 500 characters.

    Args:
        leaf: which of a group's; None = its first.
    """
    leaf = leaf or next(leaves(exc))
    raised = [leaf, exc, *(each for each in (leaf.__cause__, leaf.__context__) if each is not None)]
    stacks = [_stack_of(each) for each in raised]
    where = _own(next((stack for stack in stacks if _theirs(stack)), stacks[0]))
    return f"{type(leaf).__name__}: {_said(leaf)}{f' ({where})' if where else ''}"


def _stack_of(exc: BaseException) -> list["Entry"]:
    return [(entry.filename, entry.lineno or 0, "") for entry in traceback.extract_tb(exc.__traceback__)]


def _said(exc: BaseException) -> str:
    try:
        return str(exc).replace("\n", " ")[:_MAX_CHARS]
    except BaseException as inner:  # noqa: BLE001, ASYNC103 - its __str__ is the user's too
        return f"it can't say what: {type(inner).__name__}"  # noqa: ASYNC104 - no coroutine


def _where_of_task(task: "asyncio.Task[Any]") -> str:
    """The line of the user's code in which a suspended task waits; "" if it is in none."""
    stack = []
    coroutine: Any = task.get_coro()
    while coroutine is not None:
        frame: FrameType | None = getattr(coroutine, "cr_frame", None)
        if frame is not None:
            stack.append(_entry(frame))
        coroutine = getattr(coroutine, "cr_await", None)
    return _own(stack)


def where_of_thread(thread_id: int) -> str:
    """The line of the user's code that a thread is in; "" if it is in none."""
    stack = []
    frame = sys._current_frames().get(thread_id)
    while frame is not None:
        stack.append(_entry(frame))
        frame = frame.f_back
    return _own(stack[::-1])


def line_of(function: Callable[..., Any]) -> str:
    """Where a function is written."""
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
    return f"{Path(code.co_filename).name} line {code.co_firstlineno}" if code is not None else ""


Entry = tuple[str, int, str]  # file, line, function


def _entry(frame: FrameType) -> Entry:
    return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name


def _own(stack: Sequence[Entry]) -> str:
    """The innermost entry that is the user's; else of a package's; else the innermost. The outermost comes first."""
    packaged = [entry for entry in stack if not entry[0].startswith(("<", _PACKAGE)) and PACKAGES in entry[0]]
    found = _theirs(stack) or packaged or list(stack)
    return _text(found[-1]) if found else ""


def _theirs(stack: Sequence[Entry]) -> list[Entry]:
    return [e for e in stack if not e[0].startswith(("<", _PACKAGE, _STDLIB)) and PACKAGES not in e[0]]


def _text(entry: Entry) -> str:
    file, line, function = entry
    return f"{Path(file).name} line {line}{f', {function}' if function else ''}"
