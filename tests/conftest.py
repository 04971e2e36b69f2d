"""Fixtures that every test folder shares."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from astraflow.bus import Bus, EmbeddedServer, Topology
from tests.support import make_topology


@pytest.fixture
async def nats_server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    """A fresh nats-server with a token on a free port."""
    server = EmbeddedServer(tmp_path / "nats")
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def topology() -> Topology:
    return make_topology()


@pytest.fixture
async def bus(nats_server: EmbeddedServer, topology: Topology) -> AsyncIterator[Bus]:
    """A connected bus with its streams."""
    async with Bus.connect(nats_server.options, topology, producer="test") as connected:
        await connected.ensure()
        yield connected
