"""Real SGLang servers for tests, each started once and used by many engines in turn.

ASTRAFLOW_SGLANG_URLS, a comma-separated list, names servers that run already: starting one takes half a minute.
"""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from astraflow.concurrency import Background
from astraflow.config import EngineSection, SglangSection
from astraflow.engines.sglang.engine import SglangEngine
from astraflow.engines.sglang.launch import LaunchedServer
from astraflow.models.folder import write_model
from astraflow.weights.codec.tensors import HostTensor

CPU_ARGS: Mapping[str, Any] = {
    "device": "cpu",
    "mem_fraction_static": 0.3,
    "max_total_tokens": 8000,
    "max_running_requests": 32,
    "stream_interval": 1,
    "disable_overlap_schedule": True,  # exact versions at a swap (docs/decisions/0008-sglang.md)
}
KEY_ENV = "ASTRAFLOW_TEST_SGLANG_KEY_{}"


class Pool:
    """Servers that nobody uses at the moment, as sections that attach to them."""

    def __init__(self, sections: list[SglangSection]) -> None:
        self._free = sections

    def take(self) -> SglangSection:
        assert self._free, "all servers of the pool are in use"
        return self._free.pop()

    def give_back(self, section: SglangSection) -> None:
        self._free.append(section)


class PooledEngine(SglangEngine):
    """An engine attached to a server of a pool, from its start to its stop."""

    def __init__(
        self,
        pool: Pool,
        files: Mapping[str, bytes],
        tensors: Mapping[str, HostTensor],
        *,
        server: Mapping[str, Any] | None = None,
        **section: Any,
    ) -> None:
        """Args: server: keys of [engine.sglang]; section: keys of [engine]."""
        self._pool, self._server_section = pool, pool.take()
        sglang = msgspec.structs.replace(self._server_section, **(server or {}))
        engine = EngineSection(kind="sglang", sglang=sglang, **section)
        super().__init__(files, tensors, section=engine)

    async def stop(self) -> None:
        await super().stop()
        if self._server_section.url:
            self._pool.give_back(self._server_section)
            self._server_section = SglangSection()


@asynccontextmanager
async def servers(
    count: int, folder: Path, files: Mapping[str, bytes], tensors: Mapping[str, HostTensor]
) -> AsyncIterator[Pool]:
    """`count` servers of a model, started side by side."""
    if urls := os.environ.get("ASTRAFLOW_SGLANG_URLS"):
        yield Pool([SglangSection(url=url) for url in urls.split(",")])
        return
    write_model(folder, files, tensors)
    sections: list[SglangSection] = []
    async with AsyncExitStack() as stack:
        background = await stack.enter_async_context(Background())
        started = []
        for number in range(count):
            secret = folder / f"server-{number}"
            secret.mkdir()
            server = LaunchedServer(
                SglangSection(args=dict(CPU_ARGS)), folder, secret, args=CPU_ARGS, dtype="float32", label="none"
            )
            stack.push_async_callback(server.stop)
            started.append(background.start(_start(server, background, number, sections)))
        for task in started:
            await task
        yield Pool(sections)


async def _start(server: LaunchedServer, background: Background, number: int, sections: list[SglangSection]) -> None:
    client = await server.start(background)
    os.environ[KEY_ENV.format(number)] = server.key
    sections.append(SglangSection(url=client.url, key_env=KEY_ENV.format(number)))
    await client.close()
