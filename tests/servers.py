"""Clusters of real nats-servers on this machine."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from astraflow.bus import BusOptions, ClusterDoor, EmbeddedServer
from astraflow.ports import free_port

TOKEN = 'a token with "quotes", / and @ in it'


@asynccontextmanager
async def cluster_of(folder: Path, count: int = 3) -> AsyncIterator[list[EmbeddedServer]]:
    """Started servers of one cluster, on 127.0.0.1; their folders are `n0`, `n1`, …"""
    doors = [free_port() for _ in range(count)]
    peers = [f"127.0.0.1:{port}" for port in doors]
    servers = [
        EmbeddedServer(folder / f"n{n}", token=TOKEN, cluster=ClusterDoor(host="127.0.0.1", port=port, peers=peers))
        for n, port in enumerate(doors)
    ]
    try:
        async with asyncio.TaskGroup() as group:
            for server in servers:
                group.create_task(server.start())
        yield servers
    finally:
        for server in servers:
            await server.stop()


def options_of(servers: Sequence[EmbeddedServer]) -> BusOptions:
    """Who knows all of them."""
    return replace(servers[0].options, url=",".join(server.options.url for server in servers))
