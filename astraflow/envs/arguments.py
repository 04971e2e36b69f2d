"""Helpers for constructors of environments: choices, extras that may be missing. Pure."""

import importlib
from collections.abc import Sequence
from typing import Any

from astraflow.errors import ConfigError
from astraflow.extras import install_hint
from astraflow.named import nearest


def choice(key: str, value: str, allowed: Sequence[str]) -> str:
    """`value` if it is allowed. Raises ConfigError with the nearest name."""
    if value not in allowed:
        raise ConfigError(f"{key} is {value!r}, expected one of {', '.join(allowed)}{nearest(value, allowed)}")
    return value


def import_extra(module: str, *, extra: str = "envs") -> Any:
    """A module of an extra. Raises ConfigError with the pip command if it isn't installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as exc:
        raise ConfigError(f"this environment needs {exc.name or module}; run: {install_hint(extra)}") from exc
