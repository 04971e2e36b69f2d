"""What is read from the bus, and what a publish answers: values, the same whatever the bus is made of."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from astraflow.messages import Envelope


class Cursor(msgspec.Struct, frozen=True):
    """A position in a log: behind the message `message_id` at `sequence`. Sequence 0 = before the first message.

    It belongs into the reader's own snapshot, so that state and position can't disagree. `incarnation` is the stream's.
    """

    incarnation: str
    sequence: int
    message_id: str


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A message of a log and the position behind it."""

    message: Any
    envelope: Envelope
    subject: str
    sequence: int
    cursor: Cursor
    age_s: float = field(default=0.0, compare=False)  # in the server, by its clock; 0: it just came, or is a mirror's


@dataclass(frozen=True, kw_only=True)
class LogState:
    """A stream at one moment. `incarnation` changes when the stream is made anew."""

    incarnation: str
    first_sequence: int  # last_sequence + 1 if it is empty
    last_sequence: int
    messages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class KvEntry:
    """A key's value. `revision` is what `Kv.put` expects."""

    key: str
    message: Any
    revision: int


@dataclass(frozen=True, slots=True)
class KvUpdate:
    """A change. `message` None = deleted, expired or unreadable. Key "" = what there was has all been told."""

    key: str
    message: Any | None
    revision: int
    age_s: float = field(default=0.0, compare=False)  # in the server, by its clock; 0: it just came, or is a mirror's
    unreadable: bool = False  # there is something, but no message of the key's type


class PublishAck(msgspec.Struct, frozen=True):
    """Where a message is stored. `duplicate`: it had been stored before, by an earlier call or an earlier try."""

    sequence: int
    duplicate: bool = False


@dataclass(frozen=True)
class DeadLetter:
    """A message that couldn't be read. `data` is at most the first 128 KiB of its body."""

    subject: str
    sequence: int  # in the stream it came from
    reason: str
    data: bytes
