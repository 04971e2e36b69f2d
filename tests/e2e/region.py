"""A run with a second region behind a thin link, as real processes: hub, leaf, and a node that knows only the leaf."""

import contextlib
import shlex
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from astraflow.actors.base.connection import Connection
from astraflow.bus.server import free_port
from benchmarks.thin_link import ThinLink, thin_link
from tests.cli.toyrun import Command, started


@dataclass(kw_only=True)
class TwoRegions:
    """`up` is the hub's command; `connection` is how the region's actors are connected."""

    up: Command
    leaf: Command
    node: Command
    link: ThinLink
    connection: Connection


@contextlib.asynccontextmanager
async def two_regions(
    folder: Path, *, delay_s: float = 0.0, bytes_per_s: float = 0.0, node: tuple[str, ...] = ()
) -> AsyncIterator[TwoRegions]:
    """`astraflow up run.toml` with a leaf of region eu, and one node there that has begun."""
    door, leaf_port = free_port("127.0.0.1"), free_port("127.0.0.1")
    async with contextlib.AsyncExitStack() as stack:
        up = await stack.enter_async_context(started(folder, "up", "run.toml", "--leaf-listen", f"127.0.0.1:{door}"))
        line = await up.expect("astraflow bus --leaf", within_s=90)
        link = await stack.enter_async_context(thin_link(door, delay_s=delay_s, bytes_per_s=bytes_per_s))
        command = shlex.split(line)[1:]
        command[command.index("--leaf") + 1] = f"nats://127.0.0.1:{link.port}"
        command[command.index("REGION")] = "eu"
        leaf = await stack.enter_async_context(started(folder, *command, "--listen", f"127.0.0.1:{leaf_port}"))
        join = shlex.split(await leaf.expect("node --join", within_s=90))[1:]
        at = await stack.enter_async_context(started(folder, *join, "--name", "far", "--folder", "far", *node))
        await at.expect("joins run", within_s=90)
        token_file = folder / "leaf-eu" / "token"
        connection = Connection(url=f"nats://127.0.0.1:{leaf_port}", region="eu", token_file=token_file)
        yield TwoRegions(up=up, leaf=leaf, node=at, link=link, connection=connection)
