"""What changed in a run file since the run began, and which changes a run can't survive.

Pure. A run is continued from its logs and snapshots; what those were made from can't change under them.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from astraflow.config import RunConfig
from astraflow.errors import ConfigError

_FIXED = (
    ("run", "name"),
    ("run", "seed"),
    ("run", "deterministic"),
    ("bus", "region"),
    ("sources",),
    ("envs",),
    ("policies", "*", "model"),
    ("policies", "*", "trainer", "batch_groups"),
)
"""Keys that ids, cursors, snapshots or weights depend on. `*` is any name."""
_FREE = (("sources", "*", "select"), ("sources", "*", "extra"), ("sources", "*", "weight"))
"""Exceptions: what decisions record, so that they can be replayed under other settings."""


def changed_keys(old: RunConfig, new: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Dotted key → (old, new) for every key that differs; None where one side lacks it."""
    before, after = _flat(msgspec.to_builtins(old)), _flat(msgspec.to_builtins(new))
    return {
        ".".join(path): (before.get(path), after.get(path))
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
    }


def check_changes(old: RunConfig, new: RunConfig) -> list[str]:
    """The changed keys, each as `key: old → new`. Raises ConfigError if one of them can't change in a run."""
    changes = changed_keys(old, new)
    fixed = [key for key in changes if _is_fixed(tuple(key.split(".")), old, new)]
    if fixed:
        key = fixed[0]
        was, now = changes[key]
        others = f" (and {len(fixed) - 1} more: {', '.join(fixed[1:])})" if len(fixed) > 1 else ""
        raise ConfigError(
            f"{key} was {was!r} when run {old.run.name!r} began and is {now!r} now{others}; a run can't change it:"
            " set it back, or start afresh with `--fresh` or another run.name"
        )
    return [f"{key}: {was!r} → {now!r}" for key, (was, now) in changes.items()]


def _is_fixed(path: tuple[str, ...], old: RunConfig, new: RunConfig) -> bool:
    if path[0] == "policies":
        name = path[1]
        before, after = old.policies.get(name), new.policies.get(name)
        if before is None or after is None or (before.trainer is None) != (after.trainer is None):
            return True
    return _below(path, _FIXED) and not _below(path, _FREE)


def _below(path: tuple[str, ...], patterns: tuple[tuple[str, ...], ...]) -> bool:
    return any(
        len(path) >= len(each) and all(want in ("*", got) for want, got in zip(each, path, strict=False))
        for each in patterns
    )


def _flat(tree: Mapping[str, Any], path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    flat: dict[tuple[str, ...], Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, (*path, key))
        else:
            flat[(*path, key)] = value
    return flat
