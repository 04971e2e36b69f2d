"""The kinds of values that several sections share, and `doc`, which describes a key."""

from typing import Annotated, Any

from msgspec import Meta

Name = Annotated[str, Meta(pattern=r"^[a-z0-9-]{1,32}$", description="lower-case letters, digits and dashes")]
Fraction = Annotated[float, Meta(ge=0, le=1)]


def doc(text: str, **rules: Any) -> Meta:
    """What a key means, for the reference page and for errors, and its bounds (msgspec's `ge`, `gt`, `le`, …)."""
    return Meta(description=text, **rules)
