"""What every message is. A class of its own, so that the types of messages need no list."""

import msgspec


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Travels in an envelope: a struct that is only ever appended to, each field with a default."""
