"""Tasks that end with their block or call, and errors that pass as they were raised."""

import asyncio

import pytest

from astraflow.concurrency import Background, first_of, in_parallel, innermost, until_stopped, wait_at_most
from astraflow.errors import BusError


async def value(number: int) -> int:
    return number


async def for_ever(ended: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        ended.append("cancelled")


async def broken() -> None:
    raise BusError("broken") from KeyError("why")


async def test_the_first_of_several_gives_its_result_and_the_others_are_cancelled() -> None:
    ended: list[str] = []
    assert await first_of(value(3), for_ever(ended), for_ever(ended)) == 3
    assert ended == ["cancelled", "cancelled"]


async def test_work_that_is_not_first_comes_to_nothing() -> None:
    ended: list[str] = []
    assert await first_of(for_ever(ended), value(3)) is None
    assert ended == ["cancelled"]


async def test_work_that_ends_together_with_another_keeps_its_result() -> None:
    assert await first_of(value(1), value(2)) == 1


async def test_any_awaitable_can_be_first() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    future.set_result(7)
    assert await first_of(future, for_ever([])) == 7


async def test_errors_pass_unwrapped_with_their_cause() -> None:
    for failing in (first_of(broken(), for_ever([])), first_of(for_ever([]), broken()), in_background(), in_workers()):
        with pytest.raises(BusError, match="broken") as caught:
            await failing
        assert isinstance(caught.value.__cause__, KeyError)


async def in_background() -> None:
    async with Background() as background:
        background.start(broken())
        await asyncio.Event().wait()


async def in_workers() -> None:
    async def work(_: int) -> None:
        await broken()

    await in_parallel([1], work, workers=2)


async def test_who_waits_for_the_first_can_be_cancelled_itself() -> None:
    ended: list[str] = []
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(first_of(for_ever(ended), for_ever(ended)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting.cancel()
    assert waiting.cancelled()
    assert ended == ["cancelled", "cancelled"]


async def test_an_event_is_waited_for_so_long_and_no_longer() -> None:
    event = asyncio.Event()
    assert not await wait_at_most(event, 0.0)
    asyncio.get_running_loop().call_soon(event.set)
    assert await wait_at_most(event, 60.0)
    assert await wait_at_most(event, 0.0)


async def test_a_group_lives_until_it_is_stopped_and_is_told_before_its_tasks_are_cancelled() -> None:
    stopping, happened = asyncio.Event(), list[str]()
    async with until_stopped(stopping, lambda: happened.append("draining")) as group:
        group.create_task(for_ever(happened))
        asyncio.get_running_loop().call_later(0.01, stopping.set)
    assert happened == ["draining", "cancelled"]


async def test_a_crash_ends_a_group_that_nobody_stopped() -> None:
    happened: list[str] = []
    with pytest.raises(ExceptionGroup) as caught:
        async with until_stopped(asyncio.Event(), lambda: happened.append("draining")) as group:
            group.create_task(broken())
    assert isinstance(innermost(caught.value), BusError)
    assert happened == []


def test_the_innermost_error_of_a_group_is_its_first() -> None:
    inner = BusError("x")
    assert innermost(ExceptionGroup("", [ExceptionGroup("", [inner, ValueError()]), KeyError()])) is inner
    assert innermost(inner) is inner
