"""A run that isn't there: what is said, and where it may be."""

from pathlib import Path

import pytest

from astraflow.actors.base.acting import Identity, act
from astraflow.actors.base.connection import Connection
from astraflow.bus import EmbeddedServer, LeafDoor
from astraflow.errors import ConfigError
from astraflow.node.record import fetch_record


async def test_a_run_that_never_was_is_one_sentence_for_actors_too(nats_server: EmbeddedServer, tmp_path: Path) -> None:
    who = Identity(run="exxt", region="local", role="rollout", name="r", node="n", folder=tmp_path)

    async def work(ctx: object) -> None:
        raise AssertionError("there is no run")

    with pytest.raises(ConfigError, match=r"there is no run 'exxt' on .*; start it with"):
        await act(nats_server.options, who, work)


async def test_a_regions_server_names_the_region_that_was_forgotten(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path, leaf=LeafDoor(url="nats://127.0.0.1:1", region="eu", token="t"))
    await server.start()
    try:
        connection = Connection(url=server.url, region="local", token=server.token)
        with pytest.raises(ConfigError, match=r"this server is region eu's: say --region eu"):
            await fetch_record(connection, "demo")
    finally:
        await server.stop()
