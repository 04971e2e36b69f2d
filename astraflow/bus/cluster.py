"""nats-server's settings of a cluster: equal servers, each of which keeps a copy of what is stored.

Pure. Three is the fewest with which the loss of one loses nothing and stops nothing: two of three are a majority.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from astraflow.bus.serversettings import quoted
from astraflow.ports import host_port

NAME = "astraflow"
_SECURE_FILES = ("server.pem", "server.key", "ca.pem")
_ROUTE_USER = "route"  # who the servers are to each other, where a token lets in


@dataclass(frozen=True, kw_only=True)
class ClusterDoor:
    """Where this server hears the others, and where they hear it.

    `peers`: HOST:PORT of each of them; it may be among them itself. `secure_folder`: servers prove themselves to each
    other by the certificate that is there; else by the token, which all of them share.
    """

    host: str
    port: int
    peers: Sequence[str]
    secure_folder: Path | None = None

    def settings(self, token: str) -> str:
        """Lines for the server's configuration."""
        if self.secure_folder is not None:
            cert, key, ca = (quoted(str(self.secure_folder.resolve() / name)) for name in _SECURE_FILES)
            files = f"cert_file: {cert}, key_file: {key}, ca_file: {ca}"
            proof, secret = f"tls {{ {files}, verify: true, timeout: 5 }}", ""
        else:
            proof = f"authorization {{ user: {quoted(_ROUTE_USER)}, password: {quoted(token)}, timeout: 5 }}"
            secret = f"{_ROUTE_USER}:{quote(token, safe='')}@"
        routes = ", ".join(f'"nats-route://{secret}{peer}"' for peer in self.peers)
        lines = [
            f'name: "{NAME}"',
            f'listen: "{host_port(self.host, self.port)}"',
            proof,
            f"routes: [{routes}]",
            'ping_interval: "2s"  # until a frozen server is noticed, a third of all direct reads wait for it',
            "ping_max: 2",
        ]
        return "\n".join(["cluster {", *(f"  {line}" for line in lines), "}"])
