"""What comes in, whatever it is, can't end the connection: subjects and headers that aren't text are read as such.

nats-py raises in its read loop for them, which then is over though the client calls itself connected; and who may
store a message chooses its subject and headers byte by byte. It judges no message. Invariant: `headers_of` never
raises.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nats.aio.client import Client

VERSION = "NATS/1.0"


def headers_of(raw: bytes) -> dict[str, str]:
    """A block of NATS headers as a dict. What stands in its first line is the status of the server's answer."""
    first, *lines = raw.decode("utf-8", "replace").split("\r\n")
    found: dict[str, str] = {}
    status, _, description = first.removeprefix(VERSION).strip().partition(" ")
    if status.isdigit():
        found["Status"] = status
        if description:
            found["Description"] = description
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            found[name.strip()] = value.strip()
    return found


def guard(client: "Client") -> None:
    """Have `client` read messages through this module."""
    process = client._process_msg

    async def process_any(sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        await process(sid, _text(subject), _text(reply), data, headers)

    async def read_headers(headers: bytes | None) -> dict[str, str] | None:  # noqa: ASYNC124 - nats-py awaits it
        return headers_of(bytes(headers)) if headers else None

    client._process_msg = process_any  # type: ignore[method-assign]
    client._process_headers = read_headers  # type: ignore[method-assign]


def _text(raw: bytes) -> bytes:
    if not raw or raw.isascii():
        return raw
    return raw.decode("utf-8", "replace").encode()
