"""Every test here runs twice: on a nats-server, and in memory on virtual time."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest

from astraflow.bus import Bus, Topology
from astraflow.virtual_time import VirtualTimeLoop
from tests.bus.contract.place import Place, a_place


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"nats": asyncio.new_event_loop, "memory": VirtualTimeLoop}


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with a_place(tmp_path) as found:
        yield found


@pytest.fixture
async def bus(place: Place, topology: Topology) -> AsyncIterator[Bus]:
    """A connected bus with its streams."""
    async with place.connect(topology, producer="test") as connected:
        await connected.ensure()
        yield connected
