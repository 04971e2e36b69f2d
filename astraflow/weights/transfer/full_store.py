"""Where a trainer puts full versions besides the log: a shared folder, or a folder of its own that it serves by HTTP.

Deltas never come here. It decides neither when a full is due nor what is retained. Invariant: a place that `put`
returns holds the whole payload, durably; what can't be put is told, and the log takes it.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from astraflow.actors.base.context import ActorContext
from astraflow.config import WeightsSection, host_and_port
from astraflow.messages import Place
from astraflow.paths import user_path
from astraflow.weights.transfer.file_server import FullServer
from astraflow.weights.transfer.full_folder import FullFolder, file_name


class FullStore:
    """The fulls of one policy. `on_nats`: the log holds them too."""

    def __init__(self, ctx: ActorContext, folder: Path, *, server: FullServer | None, on_nats: bool) -> None:
        self.on_nats = on_nats
        self._ctx = ctx
        self._folder = FullFolder(folder)
        self._server = server
        self._complaint = ""

    async def put(self, data: memoryview, *, digests: Iterable[str], epoch: int, version: int) -> tuple[Place, ...]:
        """Store a full whose tensors have these digests; where it can be read.

        Empty if it couldn't be stored: an event and `status` say why.
        """
        name = file_name(epoch=epoch, version=version, digests=digests)
        try:
            path = await asyncio.to_thread(self._folder.write, name, data)
        except OSError as exc:
            await self._complain(
                f"full version {version} of {self._ctx.policy} can't be written to {self._folder.path}: "
                f"{exc.strerror or exc}; it goes over the bus"
            )
            return ()
        self._content()
        return (self._server.place(name) if self._server else Place(transport="file", address=str(path)),)

    async def keep(self, places: Sequence[Place], *, epoch: int) -> None:
        """Remove all files but those in `places`."""
        names = {place.address.rpartition("/")[2] for place in places}
        try:
            await asyncio.to_thread(self._folder.purge, names, epoch=epoch)
        except OSError as exc:
            await self._complain(f"old versions in {self._folder.path} can't be removed: {exc.strerror or exc}")

    async def _complain(self, text: str) -> None:
        self._complaint = self._ctx.last_error = text
        await self._ctx.bus.event("error", "weights-folder", text)

    def _content(self) -> None:
        if self._complaint and self._ctx.last_error == self._complaint:
            self._ctx.last_error = ""


@asynccontextmanager
async def full_store(ctx: ActorContext) -> AsyncIterator[FullStore | None]:
    """The store that the run file asks for; None = the log holds everything. A server lives as long as the context.

    Raises: ConfigError if the server's address can't be used.
    """
    section = ctx.policy_section.weights
    if section.full_transport == "nats":
        yield None
        return
    folder = _folder(ctx, section)
    if section.full_transport == "file":
        yield FullStore(ctx, folder, server=None, on_nats=section.full_on_nats)
        return
    host, port = host_and_port(section.listen)
    server = FullServer(folder, host=host, port=port, advertise=section.advertise)
    await asyncio.to_thread(server.open)
    try:
        yield FullStore(ctx, folder, server=server, on_nats=True)
    finally:
        await asyncio.to_thread(server.close)


def _folder(ctx: ActorContext, section: WeightsSection) -> Path:
    """One folder per policy; in a folder of the user's also one per run and start, so that runs don't meet there."""
    if not section.folder:
        return ctx.folder.absolute() / "policies" / ctx.policy / "weights"
    return user_path(section.folder) / f"{ctx.record.name}.{ctx.record.incarnation}" / ctx.policy
