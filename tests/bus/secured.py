"""A secured server, and a bus for each role."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from astraflow.bus import BusOptions, EmbeddedServer, NatsBus, Topology
from astraflow.bus.certificates import own_names
from astraflow.bus.secure import NODES, SecureFolder, credentials_file, prepare
from astraflow.bus.trust import inbox_of
from astraflow.messages.roles import Role


class Secured:
    """The running server and its folder."""

    def __init__(self, server: EmbeddedServer, folder: SecureFolder, topology: Topology) -> None:
        self.server = server
        self.folder = folder
        self.topology = topology

    def options(self, role: Role, *, run: str = "", node: str = "") -> BusOptions:
        folder = self.folder.credentials[run or self.topology.run]
        key = credentials_file(folder / NODES / node if node else folder, role)
        return BusOptions(
            url=self.server.url, credentials_file=str(key), ca_file=str(self.folder.ca_file), connect_timeout_s=5
        )

    def inbox(self, role: Role) -> str:
        """What the subjects of a key's answers begin with."""
        return inbox_of(self.options(role), "")

    def bus(self, role: Role) -> AbstractAsyncContextManager[NatsBus]:
        return NatsBus.connect(self.options(role), self.topology, producer=f"{role}-0")


@asynccontextmanager
async def secured_server(
    folder: Path, topology: Topology, *more_runs: str, nodes: Sequence[str] = ()
) -> AsyncIterator[Secured]:
    """A secured nats-server with the streams of the topology's run."""
    names = own_names("127.0.0.1")
    prepared = prepare(folder, runs=[topology.run, *more_runs], region=topology.region, names=names, nodes=nodes)
    server = EmbeddedServer(folder, security=prepared.settings)
    await server.start()
    try:
        secured = Secured(server, prepared, topology)
        async with secured.bus(Role.ADMIN) as admin:
            await admin.ensure()
        yield secured
    finally:
        await server.stop()
