"""Whether a stored message belongs where it was found. Pure; what doesn't becomes a dead letter at the caller.

It doesn't judge the message's fields, that is for who works on it, but for texts that people will read: those come out
fit to print.
"""

from astraflow.bus.wiring import Row
from astraflow.errors import MessageError
from astraflow.messages import Decoded, decode
from astraflow.messages.printable import with_printable_texts


def admit(data: bytes, *, row: Row, run: str) -> Decoded:
    """Decode a message of `row`'s stream. Raises MessageError: malformed, of another type, of another run or policy."""
    decoded = decode(data)
    name = type(decoded.message).__name__
    if type(decoded.message) not in row.messages:
        expected = ", ".join(kind.__name__ for kind in row.messages)
        raise MessageError(f"{name} {decoded.envelope.id!r} is in {row.stream}, expected {expected}")
    if decoded.envelope.run not in ("", run):
        raise MessageError(
            f"{name} {decoded.envelope.id!r} in {row.stream} is of run {decoded.envelope.run!r}, this is {run!r}"
        )
    policy = getattr(decoded.message, "policy", row.policy)
    if row.policy and policy != row.policy:
        raise MessageError(f"{name} {decoded.envelope.id!r} in {row.stream} is of policy {policy!r}")
    if row.for_people:
        return Decoded(decoded.envelope, with_printable_texts(decoded.message))
    return decoded
