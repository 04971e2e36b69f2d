"""nats-server's settings of a leaf link: a hub that lets leaf servers in, or the leaf itself, which only dials out.

Pure. Each end has a JetStream domain of its own, so that neither sees the other's streams but by name. Invariant: what
a region keeps for itself (`af-<region>.>`: tasks, requests, answers) has no way over the link.
"""

from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote, urlsplit

from astraflow.bus.names import region_prefix
from astraflow.bus.serversettings import quoted
from astraflow.errors import ConfigError
from astraflow.ports import host_port

HUB_DOMAIN = "hub"  # JetStream's domain in the server of a run's home region
_LINK_USER = "region"  # who leaf servers are where a token lets in
_DEFAULT_PORT = 7422


class LeafLink(Protocol):
    """One end of it."""

    @property
    def domain(self) -> str:
        """JetStream's domain on this end."""

    def settings(self, token: str) -> str:
        """Lines for the server's configuration. `token` is this server's own."""


@dataclass(frozen=True, kw_only=True)
class HubDoor:
    """Leaf servers that have this server's token may join here."""

    host: str
    port: int

    @property
    def domain(self) -> str:
        return HUB_DOMAIN

    def settings(self, token: str) -> str:
        return _block(
            f'listen: "{host_port(self.host, self.port)}"',
            "no_advertise: true  # a leaf behind NAT would learn an address that it can't reach, and bypass its proxy",
            f"authorization {{ user: {quoted(_LINK_USER)}, password: {quoted(token)}, timeout: 5 }}",
        )


@dataclass(frozen=True, kw_only=True)
class LeafDoor:
    """This server is a region's leaf and dials the hub at `url`, with the hub's token."""

    url: str
    region: str
    token: str

    @property
    def domain(self) -> str:
        return self.region

    def settings(self, token: str) -> str:
        own = f'"{region_prefix(self.region)}.>"'
        remote = [
            f'url: "{self._remote()}"',
            f"deny_imports: [{own}]",
            f"deny_exports: [{own}]",
        ]
        return _block('reconnect: "1s"', "remotes: [ {", *(f"  {line}" for line in remote), "} ]")

    def _remote(self) -> str:
        """The address with its secret. Raises ConfigError for an address that isn't one."""
        parts = urlsplit(self.url)
        try:
            port = parts.port or _DEFAULT_PORT
        except ValueError as exc:
            raise ConfigError(f"hub address {self.url!r} is not like nats://HOST:{_DEFAULT_PORT}") from exc
        if parts.scheme not in ("nats", "nats-leaf") or not parts.hostname:
            raise ConfigError(f"hub address {self.url!r} is not like nats://HOST:{_DEFAULT_PORT}")
        return f"nats-leaf://{_LINK_USER}:{quote(self.token, safe='')}@{host_port(parts.hostname, port)}"


def _block(*lines: str) -> str:
    return "\n".join(["leafnodes {", *(f"  {line}" for line in lines), "}"])
