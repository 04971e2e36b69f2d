"""What can still be read of a TOML text that isn't valid: its other tables and keys, to tell all mistakes at once.

It is only asked when `tomllib` has refused the whole. Invariant: a key whose statement can't be read, or whose table's
name can't, is unknown, so nothing is said about it that might not be true.
"""

import re
import tomllib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from astraflow.runfile.toml import ASSIGNMENT, parts_of
from astraflow.runfile.unknown import UNKNOWN

_HEADER_BEGINS = re.compile(r"\[+\s*([A-Za-z0-9_.\-\"' ]*)")
_LINE = re.compile(r"\(at line (\d+), column \d+\)")


class Broken(NamedTuple):
    """What is wrong where, as `tomllib` says it; `path`: the key that is unknown for it, () = no key of the file is."""

    problem: str
    path: tuple[str, ...]
    is_table: bool


class _Statement(NamedTuple):
    path: tuple[str, ...]
    first: int  # its lines in the text, from 0
    end: int


def salvage(text: str) -> tuple[dict[str, Any], list[Broken]]:
    """The tree with what is unknown in it, and every statement that can't be read."""
    lines = text.splitlines()
    kept, broken = [""] * len(lines), list[Broken]()
    for statements in _tables(lines):
        before = list(kept)
        for statement in statements:
            tried = list(before)
            for number in range(statement.first, statement.end):
                tried[number] = lines[number]
            if problem := _problem(tried, statement):
                is_table = statement is statements[0] and lines[statement.first].lstrip().startswith("[")
                broken.append(Broken(problem, statement.path, is_table))
                if is_table:
                    break  # whose keys the others are can't be said
            else:
                before = tried
        kept = before
    tree = tomllib.loads("\n".join(kept))
    for each in broken:
        _forget(tree, each.path, entirely=each.is_table)
    return tree, broken


def _tables(lines: Sequence[str]) -> Iterator[list[_Statement]]:
    """The statements of each table, its header first; those before any header come together."""
    statements: list[_Statement] = []
    table: tuple[str, ...] = ()
    in_text = False
    for number, line in enumerate(lines):
        opened = in_text
        in_text ^= (line.count('"""') + line.count("'''")) % 2 == 1
        header = None if opened else _HEADER_BEGINS.match(line)
        assignment = None if opened else ASSIGNMENT.match(line)
        if header:
            if statements:
                yield statements
            table = tuple(part for part in parts_of(header[1]) if part)
            statements = [_Statement(table, number, number + 1)]
        elif assignment or not statements:
            path = (*table, *parts_of(assignment[1])) if assignment else table
            statements.append(_Statement(path, number, number + 1))
        else:
            statements[-1] = statements[-1]._replace(end=number + 1)
    if statements:
        yield statements


def _problem(lines: Sequence[str], statement: _Statement) -> str:
    try:
        tomllib.loads("\n".join(lines))
    except tomllib.TOMLDecodeError as exc:
        text = str(exc)
        return text if _LINE.search(text) else text.replace("at end of document", f"at line {statement.first + 1}")
    return ""


def _forget(tree: dict[str, Any], path: Sequence[str], *, entirely: bool) -> None:
    """Make a key unknown. `entirely`: also if it was given before; else the second statement is what can't be."""
    table: Any = tree
    for part in path[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            return
    if path and (entirely or path[-1] not in table):
        table[path[-1]] = UNKNOWN
