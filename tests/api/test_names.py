"""A name that the run doesn't have is answered with the nearest that it has, before anything is waited for."""

from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from astraflow.actors.base.connection import Connection
from astraflow.api.run import Run
from astraflow.bus import topology_of
from astraflow.bus.memory import MemoryBus, MemoryServer
from astraflow.errors import ConfigError
from astraflow.node.record import fetch_record, open_run
from tests.actors.run_in_progress import CONFIG, running_bus


@pytest.mark.parametrize(
    ("read", "told"),
    [
        (lambda run: run.metrics("trian"), "run demo has no kind of metrics 'trian'; did you mean 'train'?"),
        (lambda run: run.metrics("x"), "'x'; known: dataflow, eval, rollout, train, weights"),
        (lambda run: run.metrics("train", policy="slover"), "no policy 'slover'; did you mean 'solver'?"),
        (lambda run: run.episodes("sum"), "no environment 'sum'; did you mean 'sums'?"),
        (lambda run: run.episodes("nope"), "no environment 'nope'; known: "),
        (lambda run: run.versions("slover"), "no policy 'slover'; did you mean 'solver'?"),
        (lambda run: run.samples("slover"), "no policy with a trainer 'slover'; did you mean 'solver'?"),
        (lambda run: run.tasks("sum"), "no source 'sum'"),
        (lambda run: run.events("eror"), "no level of events 'eror'; did you mean 'error'?"),
        (lambda run: run.events(start="frist"), "no start 'frist'; did you mean 'first'?"),
        (lambda run: run.samples("solver", start="frist"), "no start 'frist'; did you mean 'first'?"),
    ],
)
async def test_an_iterator_of_what_is_not_there(
    memory_server: MemoryServer, read: Callable[[Run], AsyncGenerator[Any, None]], told: str
) -> None:
    async with MemoryBus.connect(memory_server, topology_of(CONFIG), producer="user") as bus:
        await bus.ensure()
        with pytest.raises(ConfigError, match="run demo has no") as caught:
            await anext(read(Run(bus, CONFIG, "i")))
        assert told in str(caught.value)


async def test_a_run_that_is_not_there(tmp_path: Path) -> None:
    async with running_bus(tmp_path) as (server, _):
        connection = Connection(url=server.url, region="local", token=server.token)
        with pytest.raises(ConfigError, match=r"there is no run 'demos' on .*; did you mean 'demo'\?; start it there"):
            await fetch_record(connection, "demos")
        said: list[str] = []
        with pytest.raises(_EnoughError):
            await open_run(connection, "deno", _until_told(said))
        assert said == [f"waiting until run deno is submitted to {server.url}; did you mean 'demo'?"]


class _EnoughError(Exception):
    """Ends a wait."""


def _until_told(said: list[str]) -> Callable[[str], None]:
    def report(text: str) -> None:
        said.append(text)
        raise _EnoughError

    return report
