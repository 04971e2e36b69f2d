"""The bus of a run that isn't running, opened again to read what it holds. It starts no actor.

Invariant: nobody else runs in the folder meanwhile, and afterwards its lock file says what it said before.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from astraflow.actors.base.connection import Connection
from astraflow.bus import EmbeddedServer
from astraflow.errors import ConfigError
from astraflow.node.runfolder import RunFolder


@asynccontextmanager
async def reopened(folder: RunFolder, *, command: str) -> AsyncIterator[tuple[Connection, str]]:
    """The connection and the name of the run in `folder`, from a server that lives as long as the context.

    Raises: ConfigError if the folder is in use or holds no store; BusError.
    """
    owner = folder.owner()
    if owner is None:
        raise ConfigError(f"{folder.path} is not a run folder: it has no up.lock")
    if not folder.nats.is_dir():
        raise ConfigError(f"{folder.path} holds no store: the run is on an external server; use --url and --run")
    with folder.lock(msgspec.structs.replace(owner, pid=os.getpid(), command=command, url="")) as locked:
        server = EmbeddedServer(folder.nats)
        try:
            await server.start()
            yield Connection(url=server.url, region=owner.region, token_file=server.token_file), owner.run
        finally:
            await server.stop()
            locked.write(owner)
