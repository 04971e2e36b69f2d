"""Signals to a node's process: what each of them calls."""

import asyncio
import os
import signal

import pytest

from astraflow.node.stopper import Stopper
from tests.support import eventually


@pytest.mark.parametrize(
    ("signals", "calls"),
    [
        ([signal.SIGTERM], ["drain"]),
        ([signal.SIGINT, signal.SIGTERM], ["drain", "kill"]),
        ([signal.SIGUSR1], ["drain"]),
        ([signal.SIGUSR1, signal.SIGUSR1], ["drain", "drain"]),  # a notice may be repeated and never kills
        ([signal.SIGUSR1, signal.SIGTERM], ["drain", "drain"]),
    ],
)
async def test_signals_drain_first(signals: list[signal.Signals], calls: list[str]) -> None:
    made: list[str] = []
    stopper = Stopper(lambda _: None)
    stopper.attach(drain=lambda: made.append("drain"), kill=lambda: made.append("kill"))
    with stopper.listening():
        for number, each in enumerate(signals):
            os.kill(os.getpid(), each)
            await eventually(lambda wanted=number + 1: len(made) == wanted)
    assert made == calls


async def test_before_there_is_anything_to_drain_a_signal_gives_up() -> None:
    async def start() -> None:
        with Stopper(lambda _: None).listening():
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.get_running_loop().create_future()

    async with asyncio.TaskGroup() as group:
        starting = group.create_task(start())
    assert starting.cancelled()
