"""nats-server's settings of a cluster: equal servers, each of which keeps a copy of what is stored.

Pure. Three is the fewest with which the loss of one loses nothing and stops nothing: two of three are a majority.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

NAME = "astraflow"
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
            at = self.secure_folder.resolve()
            files = f'cert_file: "{at}/server.pem", key_file: "{at}/server.key", ca_file: "{at}/ca.pem"'
            proof, secret = f"tls {{ {files}, verify: true, timeout: 5 }}", ""
        else:
            proof = f'authorization {{ user: "{_ROUTE_USER}", password: "{token}", timeout: 5 }}'
            secret = f"{_ROUTE_USER}:{quote(token, safe='')}@"
        routes = ", ".join(f'"nats-route://{secret}{peer}"' for peer in self.peers)
        lines = [f'name: "{NAME}"', f'listen: "{self.host}:{self.port}"', proof, f"routes: [{routes}]"]
        return "\n".join(["cluster {", *(f"  {line}" for line in lines), "}"])
