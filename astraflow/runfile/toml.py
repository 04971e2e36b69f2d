"""Writing TOML, and finding the line of a key in a TOML text.

Not a parser: `tomllib` reads. Invariant: `tomllib.loads(dumps(tree)) == tree` for trees of dict, list, str, bool, int
and float.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_HEADER = re.compile(r"\s*\[+([^\[\]]+)\]+\s*(?:#.*)?$")
ASSIGNMENT = re.compile(r"\s*([A-Za-z0-9_.\-\"' ]+?)\s*=")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\b": "\\b", "\f": "\\f"}


def dumps(tree: Mapping[str, Any]) -> str:
    """A TOML document. None values are left out: TOML has no null."""
    lines: list[str] = []
    _table(tree, (), lines)
    return "\n".join(lines).strip() + "\n"


def value_text(value: Any) -> str:
    """One value as TOML, on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return '"' + "".join(_character(c) for c in value) + '"'
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{_key(k)} = {value_text(v)}" for k, v in value.items() if v is not None)
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, Sequence):
        return f"[{', '.join(value_text(v) for v in value)}]"
    return str(value)  # dates and times, which only occur in error messages


def line_of(text: str, path: Sequence[str]) -> int | None:
    """The line (from 1) where `path` is set, or where the nearest table around it starts; None if nothing is found.

    A best effort for error messages: keys inside multi-line values are found at the value's first line.
    """
    wanted = tuple(path)
    best: tuple[int, int] | None = None  # (matched parts, line)
    table: tuple[str, ...] = ()
    in_text = False
    for number, line in enumerate(text.splitlines(), start=1):
        opened = in_text
        in_text ^= (line.count('"""') + line.count("'''")) % 2 == 1
        if opened:
            continue
        if header := _HEADER.match(line):
            table = found = parts_of(header[1])
        elif assignment := ASSIGNMENT.match(line):
            found = (*table, *parts_of(assignment[1]))
        else:
            continue
        if found == wanted[: len(found)] and (best is None or len(found) > best[0]):
            best = (len(found), number)
    return best[1] if best else None


def parts_of(dotted: str) -> tuple[str, ...]:
    """The keys of `a."b".c`."""
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))


def _table(tree: Mapping[str, Any], path: tuple[str, ...], lines: list[str]) -> None:
    plain = {k: v for k, v in tree.items() if not isinstance(v, Mapping) and v is not None}
    tables = {k: v for k, v in tree.items() if isinstance(v, Mapping)}
    if path and (plain or not tables):
        lines += ["", f"[{'.'.join(map(_key, path))}]"]
    lines += [f"{_key(k)} = {value_text(v)}" for k, v in plain.items()]
    for key, table in tables.items():
        _table(table, (*path, key), lines)


def _key(key: str) -> str:
    return key if BARE_KEY.fullmatch(key) else value_text(key)


def _character(c: str) -> str:
    if c in _ESCAPES:
        return _ESCAPES[c]
    return f"\\u{ord(c):04x}" if ord(c) < 0x20 or ord(c) == 0x7F else c
