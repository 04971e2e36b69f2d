"""What is installed: the distribution that this package came in, and how to get what it lacks. Looks, installs nothing.

The import name is not the distribution's: `astraflow` on the public index is somebody else's package.
"""

from functools import lru_cache
from importlib import metadata

_PUBLISHED_AS = "astraflow-rl"


@lru_cache
def distribution() -> str:
    """The name that pip knows this package by; that of a fork, if it was installed from one."""
    found = metadata.packages_distributions().get("astraflow", [])
    return _PUBLISHED_AS if _PUBLISHED_AS in found or not found else found[0]


def install_hint(extra: str) -> str:
    """The command that brings an optional part, for the end of a message."""
    return f"pip install '{distribution()}[{extra}]'"
