"""From a TOML tree to a typed RunConfig, with errors that name the key, the place and the nearest right one.

Checks each key by itself; what keys mean together is in `checks.py`. It doesn't stop at the first mistake: what is
wrong is unknown in the config that comes out (`unknown.py`).
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin

import msgspec

from astraflow.config import RunConfig
from astraflow.config.kinds import NAME_PATTERN
from astraflow.errors import ConfigError
from astraflow.named import did_you_mean, nearest_name
from astraflow.runfile.schema import ANY_NAME, bare, keys, named_section, section
from astraflow.runfile.toml import line_of, value_text
from astraflow.runfile.unknown import UNKNOWN, holds_unknown

Path = tuple[str, ...]
_NAME = re.compile(NAME_PATTERN)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class Where:
    """Where keys come from, for error messages."""

    file: str = ""
    text: str = ""
    overrides: Mapping[Path, str] = field(default_factory=dict)

    def of(self, path: Path) -> str:
        """` in --set …`, ` in run.toml line 12` or ` in run.toml`; "" for a tree without a file."""
        for origin, argument in self.overrides.items():
            if origin[: len(path)] == path or path[: len(origin)] == origin:
                return f" in --set {argument}"
        line = line_of(self.text, path)
        return (f" in {self.file}" if self.file else "") + (f" line {line}" if line else "")

    def error(self, path: Path, problem: str) -> ConfigError:
        """A ConfigError about one key."""
        return ConfigError(f"{'.'.join(path)}{self.of(path)}: {problem}")


def decode(tree: Mapping[str, Any], where: Where) -> tuple[RunConfig, list[ConfigError]]:
    """The typed config, and what is unknown, missing, wrongly typed or out of range in it."""
    reader = _Reader(where)
    config: RunConfig = reader.section(RunConfig, tree, ())
    return config, reader.mistakes


class _Reader:
    """Goes through the tree once and notes every mistake."""

    def __init__(self, where: Where) -> None:
        self.mistakes: list[ConfigError] = []
        self._where = where

    def section(self, kind: type[msgspec.Struct], value: Any, path: Path) -> Any:
        """The struct of a table; unknown if it isn't one."""
        if value is UNKNOWN:
            return UNKNOWN
        if not isinstance(value, Mapping):
            return self._wrong(self._where.error(path, f"expected a table, got {value_text(value)}"))
        fields = {f.name: f for f in msgspec.structs.fields(kind)}
        doubtful = {self._unknown((*path, key), fields) for key in value if key not in fields}
        values = {}
        for name, spec in fields.items():
            if name in value:
                values[name] = self._read(spec.type, value[name], (*path, name))
            elif name in doubtful:  # as a key that is unknown means to say
                values[name] = UNKNOWN
            elif spec.required:
                values[name] = self._wrong(_missing((*path, name), spec.type, self._where))
        return kind(**values)

    def _read(self, annotation: Any, value: Any, path: Path) -> Any:
        if inner := section(annotation):
            return self.section(inner, value, path)
        if inner := named_section(annotation):
            return UNKNOWN if value is UNKNOWN else self._named(inner, value, path)
        if holds_unknown(value):  # said already
            return UNKNOWN
        mistakes = list(_check_value(annotation, value, path, self._where))
        self.mistakes += mistakes
        return UNKNOWN if mistakes else msgspec.convert(value, annotation)

    def _named(self, kind: type[msgspec.Struct], value: Any, path: Path) -> Any:
        """The structs of tables that the user names."""
        if not isinstance(value, Mapping):
            expected = f"expected tables [{'.'.join(path)}.<name>]"
            return self._wrong(self._where.error(path, f"{expected}, got {value_text(value)}"))
        sections = {}
        for name, inner in value.items():
            here = (*path, name)
            if not _NAME.fullmatch(name):
                sections[name] = self._wrong(
                    self._where.error(here, "a name is 1 to 32 of a-z, 0-9 and - (not at first)")
                )
            elif not isinstance(inner, Mapping) and name in kind.__struct_fields__:
                problem = f"stands right under {path[-1]}; put it in [{'.'.join(path)}.<name>]"
                self._wrong(self._where.error(here, problem))
            elif mistake := self._mistyped(kind, name, value, path):
                self._wrong(mistake)
            else:
                sections[name] = self.section(kind, inner, here)
        return sections

    def _mistyped(
        self, kind: type[msgspec.Struct], name: str, tables: Mapping[str, Any], path: Path
    ) -> ConfigError | None:
        """About a table that only --set has made, that lacks a key, and whose name is like another's."""
        made_here = [origin for origin in self._where.overrides if origin[: len(path) + 1] == (*path, name)]
        given = tables[name] if isinstance(tables[name], Mapping) else {}
        lacks = [f for f in msgspec.structs.fields(kind) if f.required and f.name not in given]
        hint = did_you_mean(name, [other for other in tables if other != name])
        if not (made_here and lacks and hint):
            return None
        return ConfigError(f"{_missing((*path, name, lacks[0].name), lacks[0].type, self._where)}{hint}")

    def _unknown(self, path: Path, known: Iterable[str]) -> str:
        """Note a key that there isn't; returns the one that is meant, if any is near."""
        self._wrong(_unknown(path, known, self._where))
        return nearest_name(path[-1], known)

    def _wrong(self, mistake: ConfigError) -> Any:
        self.mistakes.append(mistake)
        return UNKNOWN


def _check_value(annotation: Any, value: Any, path: Path, where: Where) -> Iterator[ConfigError]:
    kind, got = bare(annotation), f"got {value_text(value)}"
    if get_origin(kind) is dict:
        if not isinstance(value, Mapping):
            yield where.error(path, f"expected a table, {got}")
        else:
            yield from _check_json(value, path, where)
            if get_args(kind)[1] is not Any:
                yield from _check_converts(annotation, value, path, where)
    elif get_origin(kind) is tuple and isinstance(value, list):
        for item in value:
            yield from _check_value(get_args(kind)[0], item, path, where)
    elif get_origin(kind) is Literal:
        if value not in get_args(kind):
            hint = did_you_mean(value, get_args(kind)) if isinstance(value, str) else ""
            yield where.error(path, f"expected one of {', '.join(get_args(kind))}, {got}{hint}")
    elif isinstance(value, str) and _CONTROL.search(value):
        yield where.error(path, f"a text without control characters is expected, {got}")
    elif isinstance(value, float) and not math.isfinite(value):
        yield where.error(path, f"a finite number is expected, {got}")
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        yield where.error(path, f"a 64-bit integer is expected, {got}")
    else:
        yield from _check_converts(annotation, value, path, where)


def _check_converts(annotation: Any, value: Any, path: Path, where: Where) -> Iterator[ConfigError]:
    try:
        msgspec.convert(value, annotation)
    except msgspec.ValidationError as exc:
        problem = str(exc).replace("`", "").removeprefix("Expected ")
        if "regex" in problem:
            problem = "1 to 32 of a-z, 0-9 and - (not at first)"
        expected = problem.split(", got ")[0].replace("array", "list")
        yield where.error(path, f"expected {expected}, got {value_text(value)}")


def _check_json(value: Any, path: Path, where: Where) -> Iterator[ConfigError]:
    """Free-form arguments travel as JSON: tables, lists, text, true, false and finite numbers."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _check_json(inner, (*path, key), where)
    elif isinstance(value, list):
        for inner in value:
            yield from _check_json(inner, path, where)
    elif isinstance(value, float) and not math.isfinite(value):
        yield where.error(path, f"a finite number is expected, got {value}")
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        yield where.error(path, f"a 64-bit integer is expected, got {value}")
    elif not isinstance(value, str | int | float):
        yield where.error(path, f"dates and times are not supported, got {value}; write it as text")


def _unknown(path: Path, known: Iterable[str], where: Where) -> ConfigError:
    *above, key = path
    hint = did_you_mean(key, known)
    if not hint:  # perhaps the key is right and its table is not: `trainer.steps`
        places = {".".join(k.path[:i]) for k in keys() for i in range(2, len(k.path) + 1) if k.path[i - 1] == key}
        hint = f"; did you mean {min(places, key=len)!r}?" if places else ""
    if not hint:
        hint = f"; expected one of {', '.join(known)}"
    return ConfigError(f"unknown key {'.'.join([*above, key])}{where.of(path)}{hint}")


def _missing(path: Path, annotation: Any, where: Where) -> ConfigError:
    name = ".".join(path)
    if named_section(annotation):
        return ConfigError(f"{name}{where.of(path)} is missing; add a table [{name}.{ANY_NAME}]")
    if section(annotation):
        return ConfigError(f"{name}{where.of(path)} is missing; add a table [{name}]")
    return ConfigError(f"{name}{where.of(path[:-1])} is missing")
