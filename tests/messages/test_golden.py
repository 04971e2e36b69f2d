"""Bytes that were written once decode for ever, and hold every field."""

import typing
from typing import Any

import msgpack
import msgspec
import pytest

from astraflow.messages import MESSAGE_TYPES, SCHEMA_VERSION, decode, encode
from tests.messages.examples import example_of
from tests.messages.make_golden import GOLDEN


@pytest.mark.parametrize("name", MESSAGE_TYPES)
def test_golden_bytes_decode_to_the_example(name: str) -> None:
    envelope, message = decode((GOLDEN / f"{name}.msgpack").read_bytes())
    assert message == example_of(name)
    assert type(message) is MESSAGE_TYPES[name]
    assert (envelope.id, envelope.type, envelope.run) == (f"golden/{name}", name, "demo")
    assert (envelope.producer, envelope.trace, envelope.schema) == ("golden", "00-trace-01", SCHEMA_VERSION)
    assert envelope.sent_at > 1.7e9


def test_released_bytes_keep_decoding() -> None:
    for path in GOLDEN.glob("*.msgpack"):
        assert decode(path.read_bytes()).envelope.type == path.name.partition(".")[0]


@pytest.mark.parametrize("name", MESSAGE_TYPES)
def test_golden_bytes_hold_every_field_and_none_at_its_default(name: str) -> None:
    """A new field needs new bytes: run tests/messages/make_golden.py."""
    body = msgpack.unpackb((GOLDEN / f"{name}.msgpack").read_bytes())["body"]
    _check_fields(MESSAGE_TYPES[name], body, name)


def _check_fields(kind: type[Any], body: Any, path: str) -> None:
    if isinstance(body, list):  # an array-like struct has no names and no defaults
        return
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    assert set(body) == set(fields), path
    hints = typing.get_type_hints(kind)
    for name, field in fields.items():
        assert body[name] != field.default, f"{path}.{name}"
        nested = _struct_in(hints[name])
        if nested is not None:
            values = body[name] if isinstance(body[name], list) else [body[name]]
            for value in values:
                _check_fields(nested, value, f"{path}.{name}")


def _struct_in(kind: Any) -> type[Any] | None:
    for candidate in (kind, *typing.get_args(kind)):
        if isinstance(candidate, type) and issubclass(candidate, msgspec.Struct):
            return None if candidate.__struct_config__.array_like else candidate
    return None


@pytest.mark.parametrize("name", MESSAGE_TYPES)
def test_scripts_read_messages_without_our_schema(name: str) -> None:
    raw = msgpack.unpackb(encode(example_of(name), id="a", run="r"), strict_map_key=True)
    assert (raw["id"], raw["type"], raw["run"], raw["schema"]) == ("a", name, "r", SCHEMA_VERSION)
    assert msgspec.convert(raw["body"], MESSAGE_TYPES[name], builtin_types=(bytes,)) == example_of(name)


def test_messages_stream_from_a_file_with_an_unpacker() -> None:
    unpacker = msgpack.Unpacker()
    for name in MESSAGE_TYPES:
        unpacker.feed((GOLDEN / f"{name}.msgpack").read_bytes())
    assert [message["type"] for message in unpacker] == list(MESSAGE_TYPES)
