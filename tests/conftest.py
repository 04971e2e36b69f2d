"""Fixtures that every test folder shares."""

import asyncio
import compileall
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import astraflow
from astraflow.bus import Bus, EmbeddedServer, NatsBus, Topology
from astraflow.bus.memory import MemoryServer
from astraflow.virtual_time import VirtualTimeLoop
from tests.scheduling import slow_first
from tests.support import make_topology

# How fast examples are made says something about the machine's other work, nothing about the code.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_configure(config: pytest.Config) -> None:
    """With PYTHONDONTWRITEBYTECODE, as in many containers, every child process would compile the package anew."""
    if not hasattr(config, "workerinput"):
        compileall.compile_dir(Path(astraflow.__file__).parent, quiet=2)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    if workers > 1:
        items[:] = slow_first(items, lambda item: item.get_closest_marker("slow") is not None, workers=workers)


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """What takes its bus from memory runs on virtual time: waiting costs nothing."""
    virtual = "memory_server" in getattr(item, "fixturenames", ())
    return {"virtual": VirtualTimeLoop} if virtual else {"real": asyncio.new_event_loop}


@pytest.fixture
async def memory_server() -> MemoryServer:
    """What buses in memory share. A test that takes it runs on virtual time."""
    return MemoryServer()


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
    async with NatsBus.connect(nats_server.options, topology, producer="test") as connected:
        await connected.ensure()
        yield connected
