"""The kinds of values that several sections share, and `doc`, which describes a key."""

from typing import Annotated, Any

from msgspec import Meta

NAME_PATTERN = r"[a-z0-9][a-z0-9-]{0,31}"  # of runs, regions, envs, policies …: also folders, and words of commands
Name = Annotated[
    str,
    Meta(pattern=rf"^{NAME_PATTERN}\Z", description="lower-case letters, digits and dashes, not a dash at first"),
]
Fraction = Annotated[float, Meta(ge=0, le=1)]


def doc(text: str, **rules: Any) -> Meta:
    """What a key means, for the reference page and for errors, and its bounds (msgspec's `ge`, `gt`, `le`, …)."""
    return Meta(description=text, **rules)
