"""Whether a process has surely ended, on real processes."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from astraflow.actors.base.process_identity import has_ended, own_process, process_of, until_ended
from tests.support import LIMIT_S


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_this_process_has_not_ended() -> None:
    assert own_process()
    assert not has_ended(own_process())


def test_a_stopped_process_lives_and_an_unreaped_one_has_ended(child: subprocess.Popen[bytes]) -> None:
    name = process_of(child.pid)
    child.send_signal(signal.SIGSTOP)
    assert not has_ended(name)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie now
    assert has_ended(name)
    child.wait()
    assert has_ended(name)


def test_another_process_with_the_same_pid_is_not_taken_for_it(child: subprocess.Popen[bytes]) -> None:
    place, _, started = process_of(child.pid).rpartition("/")
    assert has_ended(f"{place}/{int(started) - 1}")


@pytest.mark.parametrize("field", [0, 1, 2])
def test_a_process_elsewhere_counts_as_alive(child: subprocess.Popen[bytes], field: int) -> None:
    parts = process_of(child.pid).split("/")
    parts[field] += "-other"
    child.kill()
    child.wait()
    assert not has_ended("/".join(parts))


@pytest.mark.parametrize("name", ["", "x", "a/b/c/d/e", "////"])
def test_what_names_no_process_counts_as_alive(name: str) -> None:
    assert not has_ended(name)


async def test_its_end_is_told_when_it_comes(child: subprocess.Popen[bytes]) -> None:
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
        waiting = group.create_task(until_ended(process_of(child.pid)))
        await asyncio.sleep(0)
        assert not waiting.done()
        child.kill()
    await until_ended(process_of(child.pid))  # a zombie still has its identity


async def test_waiting_for_a_process_elsewhere_never_ends() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await until_ended("elsewhere/boot/1/2/3")
