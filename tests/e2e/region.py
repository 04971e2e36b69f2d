"""A run with a second region behind a thin link, as real processes: hub, leaf, and a node that knows only the leaf."""

import contextlib
import shlex
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from astraflow.ports import free_port
from benchmarks.thin_link import ThinLink, thin_link
from tests.cli.toyrun import Command, started


@dataclass(kw_only=True)
class TwoRegions:
    """`up` is the hub's command; `node` knows only the leaf."""

    folder: Path
    up: Command
    leaf: Command
    leaf_command: tuple[str, ...]
    node: Command
    link: ThinLink

    @contextlib.asynccontextmanager
    async def leaf_killed(self) -> AsyncIterator[Command]:
        """kill −9 of the keeper and with it the leaf's server; inside, the same command has been started again."""
        self.leaf.process.kill()
        await self.leaf.process.wait()
        async with started(self.folder, *self.leaf_command) as again:
            await again.expect("node --join")
            yield again


@contextlib.asynccontextmanager
async def two_regions(
    folder: Path, *, delay_s: float = 0.0, bytes_per_s: float = 0.0, node: tuple[str, ...] = ()
) -> AsyncIterator[TwoRegions]:
    """`astraflow up run.toml` with a leaf of region eu, and one node there that has begun."""
    door, leaf_port = free_port(), free_port()
    async with contextlib.AsyncExitStack() as stack:
        up = await stack.enter_async_context(started(folder, "up", "run.toml", "--leaf-listen", f"127.0.0.1:{door}"))
        line = await up.expect("astraflow bus --leaf")
        link = await stack.enter_async_context(thin_link(door, delay_s=delay_s, bytes_per_s=bytes_per_s))
        command = shlex.split(line)[1:]
        command[command.index("--leaf") + 1] = f"nats://127.0.0.1:{link.port}"
        command[command.index("REGION")] = "eu"
        command += ["--listen", f"127.0.0.1:{leaf_port}"]
        leaf = await stack.enter_async_context(started(folder, *command))
        join = shlex.split(await leaf.expect("node --join"))[1:]
        at = await stack.enter_async_context(started(folder, *join, "--name", "far", "--folder", "far", *node))
        await at.expect("joins run")
        yield TwoRegions(folder=folder, up=up, leaf=leaf, leaf_command=tuple(command), node=at, link=link)
