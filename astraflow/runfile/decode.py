"""From a TOML tree to a typed RunConfig, with errors that name the key, the place and the nearest right one.

Checks each key by itself; what keys mean together is in `checks.py`.
"""

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin

import msgspec

from astraflow.config import RunConfig
from astraflow.errors import ConfigError
from astraflow.runfile.schema import ANY_NAME, bare, keys, named_section, section
from astraflow.runfile.toml import line_of, value_text

Path = tuple[str, ...]
_NAME = re.compile(r"[a-z0-9-]{1,32}")
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


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean x?`, or "" if nothing is near."""
    names = list(known)
    found = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    found = found or [other for other in names if len(name) > 2 and other.startswith(name)]
    return f"; did you mean {found[0]}?" if found else ""


def decode(tree: Mapping[str, Any], where: Where) -> RunConfig:
    """The typed config. Raises ConfigError for unknown, missing, wrongly typed and out-of-range keys."""
    _check_section(RunConfig, tree, (), where)
    return msgspec.convert(tree, RunConfig)


def _check_section(kind: type[msgspec.Struct], value: Any, path: Path, where: Where) -> None:
    if not isinstance(value, Mapping):
        raise where.error(path, f"expected a table, got {value_text(value)}")
    fields = {f.name: f for f in msgspec.structs.fields(kind)}
    for key in value:
        if key not in fields:
            raise _unknown((*path, key), fields, where)
    for name, spec in fields.items():
        here = (*path, name)
        if name not in value:
            if spec.required:
                raise _missing(here, spec.type, where)
        elif inner := section(spec.type):
            _check_section(inner, value[name], here, where)
        elif inner := named_section(spec.type):
            _check_named(inner, value[name], here, where)
        else:
            _check_value(spec.type, value[name], here, where)


def _check_named(kind: type[msgspec.Struct], value: Any, path: Path, where: Where) -> None:
    if not isinstance(value, Mapping):
        raise where.error(path, f"expected tables [{'.'.join(path)}.<name>], got {value_text(value)}")
    for name, inner in value.items():
        if not _NAME.fullmatch(name):
            raise where.error((*path, name), "a name is 1 to 32 of a-z, 0-9 and -")
        if not isinstance(inner, Mapping) and name in {f.name for f in msgspec.structs.fields(kind)}:
            raise where.error((*path, name), f"stands right under {path[-1]}; put it in [{'.'.join(path)}.<name>]")
        made_here = [o for o in where.overrides if o[: len(path) + 1] == (*path, name)]
        try:
            _check_section(kind, inner, (*path, name), where)
        except ConfigError as exc:
            others = [other for other in value if other != name]
            if made_here and " is missing" in str(exc) and (hint := nearest(name, others)):
                raise ConfigError(f"{exc}{hint}") from None
            raise


def _check_value(annotation: Any, value: Any, path: Path, where: Where) -> None:
    kind = bare(annotation)
    if get_origin(kind) is dict:
        if not isinstance(value, Mapping):
            raise where.error(path, f"expected a table, got {value_text(value)}")
        _check_json(value, path, where)
        return
    got = f"got {value_text(value)}"
    if get_origin(kind) is tuple and isinstance(value, list):
        for item in value:
            _check_value(get_args(kind)[0], item, path, where)
        return
    if get_origin(kind) is Literal and isinstance(value, str):
        if value not in get_args(kind):
            raise where.error(
                path, f"expected one of {', '.join(get_args(kind))}, {got}{nearest(value, get_args(kind))}"
            )
        return
    if isinstance(value, str) and _CONTROL.search(value):
        raise where.error(path, f"a text without control characters is expected, {got}")
    if isinstance(value, float) and not math.isfinite(value):
        raise where.error(path, f"a finite number is expected, {got}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise where.error(path, f"a 64-bit integer is expected, {got}")
    try:
        msgspec.convert(value, annotation)
    except msgspec.ValidationError as exc:
        problem = str(exc).replace("`", "").removeprefix("Expected ")
        if "regex" in problem:
            problem = "1 to 32 of a-z, 0-9 and -"
        expected = problem.split(", got ")[0].replace("array", "list")
        raise where.error(path, f"expected {expected}, {got}") from exc


def _check_json(value: Any, path: Path, where: Where) -> None:
    """Free-form arguments travel as JSON: tables, lists, text, true, false and finite numbers."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _check_json(inner, (*path, key), where)
    elif isinstance(value, list):
        for inner in value:
            _check_json(inner, path, where)
    elif isinstance(value, float) and not math.isfinite(value):
        raise where.error(path, f"a finite number is expected, got {value}")
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise where.error(path, f"a 64-bit integer is expected, got {value}")
    elif not isinstance(value, str | int | float):
        raise where.error(path, f"dates and times are not supported, got {value}; write it as text")


def _unknown(path: Path, known: Iterable[str], where: Where) -> ConfigError:
    *above, key = path
    hint = nearest(key, known)
    if not hint:  # perhaps the key is right and its table is not: `trainer.steps`
        places = {".".join(k.path[:i]) for k in keys() for i in range(2, len(k.path) + 1) if k.path[i - 1] == key}
        hint = f"; did you mean {min(places, key=len)}?" if places else ""
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
