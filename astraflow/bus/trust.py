"""Who we are to the server, and why we trust it: tokens, key files, the certificate authority.

It opens no connection. Invariant: with a CA file, or a tls:// address, no secret leaves before the server has proved
itself; a file that can't be used is one sentence, at once.
"""

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astraflow.bus.names import INBOX
from astraflow.errors import DeniedError
from astraflow.extras import install_hint

if TYPE_CHECKING:
    from nats.aio.client import Client


_KEY_ENDING = ".nk"


@dataclass(frozen=True, kw_only=True)
class BusOptions:
    """Where the server is, who we are and whom we trust. `url` may list several servers, separated by commas."""

    url: str
    token: str = ""
    credentials_file: str = ""  # a key (.nk) or NATS .creds
    ca_file: str = ""  # whoever signed the server's certificate; set = nothing is sent without TLS
    user: str = ""
    password: str = ""
    domain: str = ""  # JetStream domain to work in; "" = the server's own. Set: a hub behind the leaf that we are on
    connect_timeout_s: float = 10.0


def credentials(file: str) -> dict[str, Any]:
    """nats-py's arguments for a credentials file: a bare key, or NATS .creds. Raises DeniedError if it is neither."""
    if not file:
        return {}
    text = _read(Path(file), "credentials file")
    try:
        import nkeys
    except ImportError as exc:
        raise DeniedError(f"credentials file {file} needs the nkeys package: {install_hint('secure')}") from exc
    if "BEGIN NATS USER JWT" in text:
        return {"user_credentials": file}
    try:
        nkeys.from_seed(bytearray(text.strip().encode()))
    except (nkeys.NkeysError, ValueError) as exc:
        raise DeniedError(f"credentials file {file} is neither a NATS key (.nk) nor NATS credentials (.creds)") from exc
    return {"nkeys_seed_str": text.strip()}


def inbox_of(options: BusOptions, name: str) -> str:
    """What the subjects of our answers begin with: of a key its own, where nobody else may listen or answer."""
    if not options.credentials_file.endswith(_KEY_ENDING):
        return f"{INBOX}.{name}"
    import nkeys

    seed = _read(Path(options.credentials_file), "credentials file").strip()
    return f"{INBOX}.{nkeys.from_seed(bytearray(seed.encode())).public_key.decode()}"


def trust(ca_file: str) -> dict[str, Any]:
    """nats-py's arguments for a server whose certificate `ca_file` vouches for. Raises DeniedError."""
    if not ca_file:
        return {}
    text = _read(Path(ca_file), "CA file")
    logging.getLogger("asyncio").addFilter(_is_news)
    try:
        return {"tls": ssl.create_default_context(cadata=text)}
    except (ssl.SSLError, ValueError) as exc:
        raise DeniedError(f"CA file {ca_file} holds no PEM certificate") from exc


def insist_on_tls(client: "Client") -> None:
    """Keep `client` from introducing itself, with its secrets, to a server that doesn't speak TLS.

    nats-py would: it only upgrades when the server asks for it.
    """
    from nats import errors

    introduce = client._connect_command

    def introduce_if_encrypted() -> bytes:
        if not client._server_info.get("tls_required"):
            raise errors.SecureConnWantedError
        return introduce()

    client._connect_command = introduce_if_encrypted  # type: ignore[method-assign]


def why_distrusted(reason: str, options: BusOptions, name: str) -> str:
    """A sentence if `reason`, what nats-py says, means that trying again is useless; else ""."""
    text, url = reason.lower(), options.url
    if "certificate verify failed" in text:
        why = reason.partition("verify failed: ")[2].partition(" (_ssl")[0] or reason
        fix = "is it the right CA file, and the right address" if options.ca_file else "give its CA file"
        return f"the certificate of {url} isn't trusted: {why}; {fix} (--ca-file, or bus.ca_file)?"
    if "secure connection not available" in text:
        return f"{url} doesn't speak TLS, and a CA file or tls:// asks for it; is it the right server?"
    if "authorization" in text or "authentication" in text:
        given = "the token" if options.token else options.credentials_file or "no token and no credentials"
        return f"{url} refuses the credentials of {name} ({given}): {reason}; check the token or credentials file"
    return ""


def _is_news(record: logging.LogRecord) -> bool:
    """asyncio warns at the end of every TLS connection of nats-py, whose protocol keeps its half of it open."""
    return "eof_received() has no effect" not in record.msg


def _read(path: Path, what: str) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as exc:
        raise DeniedError(f"{what} {path} can't be read: {getattr(exc, 'strerror', None) or 'it is not text'}") from exc
