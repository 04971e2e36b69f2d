"""Code of the user's own: whatever it raises is a value with their line, and what never ends is left behind."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from astraflow.envs import ChatMessage, Grade, SingleTurnEnv
from astraflow.envs.threads import Threads
from astraflow.envs.usercode import LOST, call, contain_tasks, in_thread, on_loop
from astraflow.errors import EnvError, GraderError, HungError, RaisedError
from astraflow.messages import Reason
from astraflow.raised import describe
from tests.envs.scripted import ScriptedPolicy, reply, task
from tests.support import eventually

HERE = Path(__file__).name


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Own(BaseException):
    """Nobody's `except Exception` sees it."""


RAISED: list[Callable[[], BaseException]] = [
    lambda: SystemExit(0),
    KeyboardInterrupt,
    GeneratorExit,
    asyncio.CancelledError,
    StopIteration,
    StopAsyncIteration,
    RecursionError,
    MemoryError,
    TimeoutError,
    Own,
    Unspeakable,
    lambda: BaseExceptionGroup("several", [SystemExit(1), ValueError("x")]),
]


def raising(make: Callable[[], BaseException]) -> Callable[..., Any]:
    def work(*args: Any) -> Any:
        raise make()

    return work


def raising_later(make: Callable[[], BaseException]) -> Callable[..., Any]:
    async def work(*args: Any) -> Any:
        await asyncio.sleep(0)
        raise make()

    return work


class Env(SingleTurnEnv):
    """Fails where the test says."""

    def __init__(self, **parts: Callable[..., Any]) -> None:
        super().__init__()
        for name, function in parts.items():
            setattr(self, name, function)

    def task(self, index: int) -> dict[str, Any]:
        return {}

    def prompt(self, payload: Any) -> list[ChatMessage]:
        return [ChatMessage("user", "?")]

    def grade(self, payload: Any, reply: Any) -> Grade:
        return Grade(reward=1.0)


@pytest.mark.parametrize("make", RAISED)
@pytest.mark.parametrize("kind", [raising, raising_later])
async def test_whatever_a_grader_raises_is_the_reason_grader_with_its_line(kind: Any, make: Any) -> None:
    outcome = await Env(grade=kind(make)).run(task({}), {"p": ScriptedPolicy("x")})
    assert (outcome.reason, outcome.rewards) == (Reason.GRADER, {})
    assert f"({HERE} line " in outcome.error


@pytest.mark.parametrize("make", RAISED)
@pytest.mark.parametrize("kind", [raising, raising_later])
async def test_whatever_a_prompt_raises_is_an_environments_error_with_its_line(kind: Any, make: Any) -> None:
    with pytest.raises(EnvError, match=f"has no prompt.*{HERE} line "):
        await Env(prompt=kind(make)).run(task({}), {"p": ScriptedPolicy("x")})


async def test_a_cancel_of_ours_is_one_whatever_the_code_makes_of_it() -> None:
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            raise SystemExit(1) from None

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(on_loop(work, within_s=600))
        await begun.wait()
        waiting.cancel()
    assert waiting.cancelled()


async def test_exit_in_a_task_that_the_code_starts_is_its_error_only() -> None:
    contain_tasks(asyncio.get_running_loop())

    async def leave() -> None:
        await asyncio.sleep(0)
        raise SystemExit("out")

    async def grouped() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(leave())
            await asyncio.sleep(600)

    async def forgotten() -> str:
        running = asyncio.get_running_loop().create_task(leave())
        await asyncio.wait((running,))
        return repr(running.exception())

    with pytest.raises(RaisedError, match=f"SystemExit: out.*{HERE} line "):
        await on_loop(grouped, within_s=60)
    assert "SystemExit: out" in await on_loop(forgotten, within_s=60)


@contextmanager
def stubborn() -> Iterator[tuple[Callable[[], Any], asyncio.Event]]:
    """A coroutine function that swallows every cancel until the end of the test."""
    leave = asyncio.Event()

    async def work(*args: Any) -> None:
        while not leave.is_set():
            try:
                await leave.wait()
            except BaseException:  # noqa: BLE001 - what users write
                continue

    yield work, leave
    leave.set()


async def test_a_swallowed_cancel_is_left_behind_with_its_line_and_found_again(monkeypatch: Any) -> None:
    monkeypatch.setattr("astraflow.envs.usercode.GRACE_S", 0.05)
    before = LOST.count
    with stubborn() as (work, leave):
        with pytest.raises(HungError, match=rf"not done within 0.1 s: it was in {HERE} line \d+, work"):
            await on_loop(work, within_s=0.1)
        assert LOST.count == before + 1
        env = Env(grade=work)
        env.grade_deadline_s = 0.1
        with pytest.raises(GraderError, match=f"grade.. not done within 0.1 s: it was in {HERE}"):
            await env.judge(task({}), reply("x"))
        leave.set()
        await eventually(lambda: LOST.count == before)


async def test_functions_that_never_return_take_no_thread_from_the_others() -> None:
    leave = threading.Event()
    before = LOST.count

    def hang(*args: Any) -> Grade:
        leave.wait()
        return Grade(reward=1.0)

    async def hung() -> None:
        env = Env(grade=hang)
        env.grade_deadline_s = 0.1
        with pytest.raises(GraderError, match=rf"not done within 0.1 s: it was in {HERE} line \d+, hang"):
            await env.judge(task({}), reply("x"))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(40):  # more than there are threads
                group.create_task(hung())
        assert LOST.count == before + 40
        assert (await Env().judge(task({}), reply("x"))).reward == 1.0
    finally:
        leave.set()
    await eventually(lambda: LOST.count == before)


async def test_time_spent_waiting_for_a_thread_does_not_count() -> None:
    threads, leave = Threads(1), threading.Event()
    first = threads.submit(leave.wait, within_s=60)
    second = threads.submit(lambda: 2, within_s=0.0001)
    third = threads.submit(lambda: 3, within_s=60)
    third.unwanted = True
    fourth = threads.submit(lambda: 4, within_s=60)
    leave.set()
    for job in (first, second, fourth):
        await job.settled.wait()
    assert (second.value, fourth.value, third.value, threads.lost) == (2, 4, None, 0)


async def test_a_plain_function_that_returns_a_coroutine_is_awaited() -> None:
    async def later() -> int:
        return 7

    assert await call(lambda: later(), within_s=60) == 7


def test_a_line_of_the_users_code_is_named_not_of_the_library_that_it_called() -> None:
    import json

    for code in (lambda: json.loads("{"), lambda: exec("exit(0)")):
        with pytest.raises(BaseException) as caught:  # noqa: PT011 - both kinds
            code()
        assert f"({HERE} line " in describe(caught.value)


async def test_a_thread_raises_what_it_raised() -> None:
    with pytest.raises(RaisedError) as caught:
        await in_thread(raising(StopIteration), within_s=60)
    assert isinstance(caught.value.error, StopIteration)
