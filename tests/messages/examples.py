"""One example of every message, made from its type: every field set, none to its default."""

import types
import typing
import zlib
from enum import Enum
from typing import Any

import msgspec

from astraflow.messages import MESSAGE_TYPES, array_of
from astraflow.messages.arrays import Array

ANYTHING = {"text": "ünï", "list": [1, -2.5, None, True], "bytes": b"\x00\xff"}


def example_of(name: str) -> Any:
    """The example of the message type `name`; equal in every process."""
    return _struct(MESSAGE_TYPES[name], name)


def _struct(kind: type[Any], path: str) -> Any:
    if kind is Array:
        return array_of([[zlib.crc32(path.encode()) % 100, -1], [2, 3]], "i4")
    hints = typing.get_type_hints(kind)
    fields = msgspec.structs.fields(kind)
    values = {field.name: _value(hints[field.name], f"{path}.{field.name}", field.default) for field in fields}
    return kind(**values)


def _value(kind: Any, path: str, default: Any = msgspec.NODEFAULT) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    number = zlib.crc32(path.encode()) % 1000 + 2
    if kind is Any:
        return ANYTHING
    if origin is tuple:
        return (_value(args[0], f"{path}.0"), _value(args[0], f"{path}.1"))
    if origin is dict:
        return {_value(args[0], f"{path}.key"): _value(args[1], f"{path}.value")}
    if origin in (typing.Union, types.UnionType):
        return _value(next(arg for arg in args if arg is not type(None)), path)
    if issubclass(kind, Enum):
        return next(member for member in reversed(kind) if member != default)
    if issubclass(kind, msgspec.Struct):
        return _struct(kind, path)
    if kind is bool:
        return default is not True
    return {int: number, float: number + 0.5, str: f"{path} é", bytes: path.encode() + b"\xff"}[kind]
