"""Helpers for constructors of environments: choices, nearest names, extras that may be missing. Pure."""

import importlib
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

from astraflow.errors import ConfigError

EXTRA = "pip install 'astraflow[envs]'"


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error message: `; did you mean 'chain_sum'?`, or the known names if none is near."""
    names = sorted(known)
    close = get_close_matches(name, names, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(names[:40])}{', …' if len(names) > 40 else ''}" if names else "; it takes none"


def choice(key: str, value: str, allowed: Sequence[str]) -> str:
    """`value` if it is allowed. Raises ConfigError with the nearest name."""
    if value not in allowed:
        raise ConfigError(f"{key} is {value!r}, expected one of {', '.join(allowed)}{nearest(value, allowed)}")
    return value


def import_extra(module: str) -> Any:
    """A module of the `envs` extra. Raises ConfigError with the pip command if it isn't installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as exc:
        raise ConfigError(f"this environment needs {exc.name or module}; run: {EXTRA}") from exc
