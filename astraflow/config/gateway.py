"""How other people's agents reach a rollout process: [gateway]."""

from typing import Annotated

from msgspec import Struct

from astraflow.config.kinds import doc


class GatewaySection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[gateway]: HTTP for environments that are played by a command or through sessions."""

    listen: Annotated[
        str, doc("HOST:PORT of each rollout process; port 0 = a free one, which its file in the run folder says")
    ] = "127.0.0.1:0"
    key_file: Annotated[str, doc("file with the key that takes sessions; empty = a new one for each process")] = ""
    tls_certificate: Annotated[str, doc("PEM file; needed to listen on an address that others can reach")] = ""
    tls_key: Annotated[str, doc("PEM file of the certificate's private key")] = ""
