"""Checks of selectors' arguments. Pure."""

from astraflow.errors import ConfigError


def share(name: str, value: float, *, least: float = 0.0) -> float:
    """`value` if it is in [least, 1]. Raises ConfigError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= 1:
        raise ConfigError(f"{name} is {value!r}, expected a number from {least:g} to 1")
    return float(value)


def count(name: str, value: int, *, least: int = 1) -> int:
    """`value` if it is an integer of at least `least`. Raises ConfigError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} is {value!r}, expected an integer of at least {least}")
    return value
