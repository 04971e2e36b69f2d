"""A run on three equal servers: each is killed, frozen or restarted, one after another, and nobody could tell after."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from astraflow.bus import EmbeddedServer
from tests.cli.toyrun import sets, started
from tests.e2e.finite import FiniteRun
from tests.servers import TOKEN, cluster_of, options_of
from tests.support import kill


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[list[EmbeddedServer]]:
    async with cluster_of(tmp_path) as started_servers:
        yield started_servers


@pytest.mark.slow
async def test_the_loss_of_any_one_server_is_only_a_pause(servers: list[EmbeddedServer], tmp_path: Path) -> None:
    run = FiniteRun(name="demo", groups=100)
    (tmp_path / "run.toml").write_text(run.text())
    (tmp_path / "token").write_text(TOKEN)
    urls = options_of(servers).url
    on_them = sets(f'bus.url="{urls}"', 'bus.token_file="token"')
    async with started(tmp_path, "up", "run.toml", *on_them) as command:
        await command.expect("solver step 3/")
        for number in (0, 1):
            await kill(servers[number])
            await command.expect(f"solver step {10 + 10 * number}/")  # the two that are left do it
            await servers[number].start()
        os.kill(servers[2].pid, signal.SIGSTOP)  # as if its cable were pulled
        await command.expect("solver step 30/")
        os.kill(servers[2].pid, signal.SIGCONT)
        for number, server in enumerate(servers):  # as for a new version of it
            await server.stop()
            await server.start()
            await command.expect(f"solver step {34 + 4 * number}/")
        assert await command.end() == 0, command.output
    assert run.broken(tmp_path / "runs" / run.name) == []
