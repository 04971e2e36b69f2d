"""Asyncio on virtual time: waiting costs nothing, and order and durations are exact."""

import asyncio
import contextlib
import time

import pytest

from astraflow import clock, virtual_time
from astraflow.errors import StalledError
from astraflow.virtual_time import run_in_virtual_time

DAY_S = 86_400.0


def test_a_day_of_waiting_takes_no_time_and_every_clock_agrees() -> None:
    async def main() -> tuple[float, float, float, float]:
        loop = asyncio.get_running_loop()
        before = loop.time(), clock.monotonic(), clock.boottime(), clock.wall()
        await asyncio.sleep(DAY_S)
        after = loop.time(), clock.monotonic(), clock.boottime(), clock.wall()
        return tuple(b - a for a, b in zip(before, after, strict=True))  # type: ignore[return-value]

    began = time.monotonic()
    assert run_in_virtual_time(main()) == pytest.approx((DAY_S,) * 4)
    assert time.monotonic() - began < 5


def test_timeouts_end_at_their_time_and_shorter_work_wins() -> None:
    async def main() -> list[str]:
        told = []
        try:
            async with asyncio.timeout(10):
                await asyncio.sleep(11)
        except TimeoutError:
            told.append(f"late at {clock.monotonic() - began:.0f}")
        async with asyncio.timeout(10):
            await asyncio.sleep(9)
        told.append(f"in time at {clock.monotonic() - began:.0f}")
        return told

    began = virtual_time.FIRST_S
    assert run_in_virtual_time(main()) == ["late at 10", "in time at 19"]


def test_tasks_run_in_the_order_of_their_times_however_long_they_wait() -> None:
    async def main() -> list[int]:
        told: list[int] = []

        async def at(seconds: int) -> None:
            await asyncio.sleep(seconds)
            told.append(seconds)

        async with asyncio.TaskGroup() as group:
            for seconds in (1_000_000, 3, 70_000, 1, 0):
                group.create_task(at(seconds))
        return told

    assert run_in_virtual_time(main()) == [0, 1, 3, 70_000, 1_000_000]


def test_time_stands_still_while_a_thread_works() -> None:
    async def main() -> tuple[bool, float]:
        let_go = asyncio.Event()
        loop = asyncio.get_running_loop()

        def work() -> float:
            began = clock.monotonic()
            time.sleep(0.05)  # for real: an impatient loop would have jumped meanwhile
            return clock.monotonic() - began

        async def impatient() -> None:
            await asyncio.sleep(0.001)
            let_go.set()

        async with asyncio.TaskGroup() as group:
            group.create_task(impatient())
            took_s = await asyncio.to_thread(work)
            early = let_go.is_set()
        assert loop.time() == pytest.approx(virtual_time.FIRST_S + 0.001)
        return early, took_s

    assert run_in_virtual_time(main()) == (False, pytest.approx(0.0))


def test_a_thread_sleeps_virtual_time_beside_the_loop() -> None:
    async def main() -> tuple[float, int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(60)
                ticks += 1

        def work() -> float:
            began = clock.monotonic()
            clock.sleep(3600.5)
            return clock.monotonic() - began

        async with asyncio.TaskGroup() as group:
            ticking = group.create_task(tick())
            slept_s = await asyncio.to_thread(work)
            ticking.cancel()
        return slept_s, ticks

    slept_s, ticks = run_in_virtual_time(main())
    assert (slept_s, ticks) == (pytest.approx(3600.5), 60)


def test_two_runs_see_the_same_times() -> None:
    async def main() -> list[float]:
        async def work(number: int) -> float:
            for _ in range(number):
                await asyncio.sleep(0.1 * number)
                await asyncio.to_thread(int)
            return clock.wall()

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work(number)) for number in range(8)]
        return [task.result() for task in tasks]

    assert run_in_virtual_time(main()) == run_in_virtual_time(main())


def test_what_can_never_come_is_an_error_and_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(virtual_time, "STALLED_S", 0.05)
    with pytest.raises(StalledError, match="no timer is set"):
        run_in_virtual_time(main())


def test_time_is_real_again_when_the_loop_has_ended() -> None:
    run_in_virtual_time(asyncio.sleep(0))
    assert abs(clock.wall() - time.time()) < 60


def test_code_that_rounding_left_a_hair_before_its_time_does_not_spin() -> None:
    async def main() -> int:
        began, turns = clock.monotonic(), 0
        while clock.monotonic() - began < 0.1:
            turns += 1
            left_s = began + 0.1 - clock.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, left_s)):
                    await asyncio.Event().wait()
        return turns

    async def many() -> int:
        most = 0
        for _ in range(1000):
            await asyncio.sleep(0.3)
            most = max(most, await main())
        return most

    assert run_in_virtual_time(many()) < 10
