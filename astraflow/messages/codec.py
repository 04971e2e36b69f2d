"""Encode and decode. An envelope with a typed body, both msgpack, through msgspec.

It does no I/O. Whatever comes in, `decode` returns a message or raises MessageError, nothing else.
"""

from functools import cache
from typing import Any, NamedTuple

import msgspec

from astraflow import clock
from astraflow.errors import MessageError
from astraflow.messages.message import Message
from astraflow.messages.registry import MESSAGE_TYPES, NAMES

SCHEMA_VERSION = 1


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """What every message carries around its body."""

    id: str
    type: str
    schema: int
    run: str
    producer: str
    sent_at: float  # unix seconds by the producer's clock, for people
    trace: str = ""  # W3C traceparent of the sender; "" = none
    body: msgspec.Raw


class Decoded(NamedTuple):
    envelope: Envelope
    message: Any  # one of MESSAGE_TYPES; callers narrow with isinstance


_encoder = msgspec.msgpack.Encoder()
_envelope_decoder = msgspec.msgpack.Decoder(Envelope)


@cache
def _body_decoder(name: str) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(MESSAGE_TYPES[name])


def encode(message: Message, *, id: str, run: str = "", producer: str = "", trace: str = "") -> bytes:
    """The message in its envelope. `id` must be deterministic where the message may be sent twice."""
    name = NAMES[type(message)]
    try:
        body = msgspec.Raw(_encoder.encode(message))
    except (TypeError, OverflowError, ValueError, RecursionError) as exc:
        raise MessageError(f"{name} {id} can't be encoded: {exc}") from exc
    return _encoder.encode(
        Envelope(
            id=id,
            type=name,
            schema=SCHEMA_VERSION,
            run=run,
            producer=producer,
            sent_at=clock.wall(),
            trace=trace,
            body=body,
        )
    )


def encode_envelope(envelope: Envelope) -> bytes:
    """What it was decoded from: to pass a message on as its producer made it."""
    return _encoder.encode(envelope)


def decode(data: bytes) -> Decoded:
    """The envelope and its typed body. Raises MessageError for anything malformed, unknown or too new."""
    try:
        envelope = _envelope_decoder.decode(data)
        if envelope.type not in MESSAGE_TYPES:
            raise MessageError(f"message {envelope.id!r} has unknown type {envelope.type!r}")
        if envelope.schema > SCHEMA_VERSION:
            raise MessageError(
                f"{envelope.type} {envelope.id!r} has schema {envelope.schema}, this process reads up to "
                f"{SCHEMA_VERSION}; upgrade astraflow here"
            )
        return Decoded(envelope, _body_decoder(envelope.type).decode(envelope.body))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError, ValueError) as exc:
        raise MessageError(f"message of {len(data)} bytes can't be decoded: {exc}") from exc
