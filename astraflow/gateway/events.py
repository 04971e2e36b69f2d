"""Server-sent events: an answer told in pieces. A reply is complete before its first piece is sent."""

from collections.abc import Iterator
from typing import Any

import msgspec

_PIECE_CHARS = 256


def event(data: dict[str, Any], *, name: str = "") -> bytes:
    """One event. `name`: its type, in the dialects that have one."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + msgspec.json.encode(data) + b"\n\n"


def pieces(text: str) -> Iterator[str]:
    """The text in the pieces in which it is told."""
    for at in range(0, len(text), _PIECE_CHARS):
        yield text[at : at + _PIECE_CHARS]
