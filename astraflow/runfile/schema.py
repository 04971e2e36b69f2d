"""The shape of the run file, read from the structs of `astraflow.config`: sections, keys, types, defaults, meanings.

No values and no files. Invariant: everything that a user may write in a run file is a `Key` of `keys()`.
"""

import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

from astraflow.config import RunConfig

ANY_NAME = "<name>"


@dataclass(frozen=True)
class Key:
    """One key of the run file. `path` has `<name>` where the user chooses a name, e.g. policies.<name>.model."""

    path: tuple[str, ...]
    annotation: Any  # with msgspec's Meta
    required: bool
    default: Any  # meaningless if required

    @property
    def description(self) -> str:
        """What the key means, from the innermost Meta; "" if the schema has none."""
        metas = [meta for meta in get_args(self.annotation)[1:] if isinstance(meta, msgspec.Meta)]
        return next((meta.description for meta in reversed(metas) if meta.description), "")

    @property
    def type_name(self) -> str:
        """The type for people, with its bounds: `integer ≥ 1`, `cpu | toy`, `text`."""
        return _type_name(self.annotation)


def bare(annotation: Any) -> Any:
    """The type without Annotated and without `| None`."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (typing.Union, types.UnionType):
        return bare(next(arg for arg in get_args(annotation) if arg is not type(None)))
    return annotation


def section(annotation: Any) -> type[msgspec.Struct] | None:
    """The struct behind a table such as [run]; None if it is not one."""
    kind = bare(annotation)
    return kind if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else None


def named_section(annotation: Any) -> type[msgspec.Struct] | None:
    """The struct behind each [policies.<name>]; None if the key is not a table of named sections."""
    kind = bare(annotation)
    return section(get_args(kind)[1]) if get_origin(kind) is dict else None


def keys(kind: type[msgspec.Struct] = RunConfig, path: tuple[str, ...] = ()) -> Iterator[Key]:
    """Every leaf key below `kind`, in the order of the schema."""
    for field in msgspec.structs.fields(kind):
        here = (*path, field.name)
        if inner := section(field.type):
            yield from keys(inner, here)
        elif inner := named_section(field.type):
            yield from keys(inner, (*here, ANY_NAME))
        else:
            yield Key(here, field.type, field.required, _default(field))


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def _type_name(annotation: Any) -> str:
    kind = bare(annotation)
    if get_origin(kind) is Literal:
        return " | ".join(map(str, get_args(kind)))
    if get_origin(kind) is tuple:
        return f"list of {_type_name(get_args(kind)[0])}"
    if get_origin(kind) is dict:
        return "table"
    name = {bool: "true | false", int: "integer", float: "number", str: "text"}[kind]
    return " ".join([name, *_bounds(annotation)])


def _bounds(annotation: Any) -> list[str]:
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    metas = [meta for meta in get_args(annotation)[1:] if isinstance(meta, msgspec.Meta)]
    return [f"{sign} {getattr(m, rule)}" for m in metas for rule, sign in signs.items() if getattr(m, rule) is not None]
