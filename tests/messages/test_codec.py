"""Decoding returns a message or raises MessageError, whatever comes in."""

import random
import time
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.errors import MessageError
from astraflow.messages import MESSAGE_TYPES, Array, Decoded, Episode, Event, GenCancel, Task, decode, encode
from tests.messages.examples import example_of
from tests.messages.make_golden import GOLDEN

GOLDEN_BYTES = [path.read_bytes() for path in sorted(GOLDEN.glob("*.msgpack"))]


def _decodes_or_refuses(data: bytes) -> None:
    try:
        decoded = decode(data)
    except MessageError:
        return
    assert isinstance(decoded, Decoded)
    assert type(decoded.message) is MESSAGE_TYPES[decoded.envelope.type]


def _with(data: bytes, **changes: Any) -> bytes:
    return msgpack.packb(msgpack.unpackb(data) | changes)


CANCEL = encode(GenCancel(request_id="a"), id="a")


@pytest.mark.parametrize("name", MESSAGE_TYPES)
def test_every_message_comes_back(name: str) -> None:
    before = time.time()
    envelope, message = decode(encode(example_of(name), id="a/b", run="r", producer="p", trace="t"))
    assert message == example_of(name)
    assert (envelope.id, envelope.run, envelope.producer, envelope.trace) == ("a/b", "r", "p", "t")
    assert before <= envelope.sent_at <= time.time()


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data: bytes) -> None:
    _decodes_or_refuses(data)


@settings(max_examples=300)
@given(st.sampled_from(GOLDEN_BYTES), st.data())
def test_mutated_messages_decode_or_are_refused(golden: bytes, data: st.DataObject) -> None:
    mutated = bytearray(golden)
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(mutated) - 1))
        match data.draw(st.sampled_from(["set", "delete", "insert"])):
            case "set":
                mutated[at] = data.draw(st.integers(0, 255))
            case "delete" if len(mutated) > 1:
                del mutated[at]
            case _:
                mutated[at:at] = data.draw(st.binary(min_size=1, max_size=5))
    _decodes_or_refuses(bytes(mutated))


@pytest.mark.parametrize("golden", GOLDEN_BYTES)
def test_every_truncation_is_refused(golden: bytes) -> None:
    for length in range(0, len(golden), max(1, len(golden) // 50)):
        with pytest.raises(MessageError):
            decode(golden[:length])
    with pytest.raises(MessageError):
        decode(golden + b"\x00")


def test_every_single_byte_flip_of_a_message_decodes_or_is_refused() -> None:
    rng = random.Random(0)
    for golden in GOLDEN_BYTES:
        for at in range(len(golden)):
            mutated = bytearray(golden)
            mutated[at] ^= 1 << rng.randrange(8)
            _decodes_or_refuses(bytes(mutated))


@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param(b"\x91" * 200_000, id="deep arrays"),
        pytest.param(b"\x81\xa1a" * 200_000, id="deep maps"),
        pytest.param(_with(CANCEL, type="event")[:-1], id="truncated"),
        pytest.param(b"\xdd\xff\xff\xff\xff", id="array of 4 billion"),
        pytest.param(b"\xdf\xff\xff\xff\xff", id="map of 4 billion"),
        pytest.param(b"\xdb\xff\xff\xff\xff", id="string of 4 GiB"),
        pytest.param(b"\xc6\xff\xff\xff\xff", id="bytes of 4 GiB"),
        pytest.param(b"\xc9\xff\xff\xff\xff\x05", id="ext of 4 GiB"),
        pytest.param(b"\xd4\x05\x00", id="unknown ext alone"),
        pytest.param(b"\xc1", id="never used byte"),
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xc0", id="nil"),
        pytest.param(b"\x80", id="empty map"),
        pytest.param(msgpack.packb({1: 2}), id="integer keys"),
        pytest.param(_with(CANCEL, id=b"bytes"), id="wrong type in the envelope"),
        pytest.param(_with(CANCEL, body={"request_id": 7}), id="wrong type in the body"),
        pytest.param(_with(CANCEL, body={}), id="missing field"),
        pytest.param(_with(CANCEL, body=[1]), id="array for a map"),
        pytest.param(_with(CANCEL, body={"request_id": msgpack.ExtType(5, b"x")}), id="ext for a string"),
        pytest.param(_with(CANCEL, sent_at=msgpack.Timestamp(1)), id="timestamp for a float"),
        pytest.param(CANCEL.replace(b"\xa1a", b"\xa1\xff"), id="invalid utf-8"),
    ],
)
def test_hostile_bytes_are_refused(hostile: bytes) -> None:
    with pytest.raises(MessageError):
        decode(hostile)


def test_a_body_that_nests_too_deep_is_refused() -> None:
    event = encode(Event(level="info", name="n", text="t"), id="a")
    nested = b"\x91" * 100_000 + b"\xc0"
    assert event.endswith(b"\xa6fields\x80")
    with pytest.raises(MessageError):
        decode(event[:-1] + b"\x81\xa1a" + nested)


def test_an_unknown_type_and_a_newer_schema_say_what_to_do() -> None:
    with pytest.raises(MessageError, match="unknown type 'party'"):
        decode(_with(CANCEL, type="party"))
    with pytest.raises(MessageError, match=r"schema 99.*upgrade astraflow"):
        decode(_with(CANCEL, schema=99))


def test_fields_of_a_newer_version_are_ignored_and_missing_ones_take_their_defaults() -> None:
    task = msgpack.unpackb(encode(example_of("task"), id="a"))["body"]
    required = {
        key: task[key] for key in ("id", "group_id", "group_size", "member", "source", "env", "payload", "seed")
    }
    old = _with(CANCEL, type="task", body=required | {"from_the_future": [1, 2]})
    message = decode(old).message
    assert isinstance(message, Task)
    assert (message.attempt, message.deadline_s, message.feeds) == (0, 600.0, ())


@pytest.mark.parametrize("bad", ["\ud800", object(), 1 << 70, {object(): 1}], ids=["text", "object", "int", "map"])
def test_what_can_not_be_encoded_is_a_message_error(bad: Any) -> None:
    with pytest.raises(MessageError, match="event a can't be encoded"):
        encode(Event(level="info", name="n", text="t", fields={"bad": bad}), id="a")


def test_nothing_in_a_message_is_executed() -> None:
    pickled = b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R."
    with pytest.raises(MessageError):
        decode(pickled)


def test_decoding_is_fast_enough_for_the_stream() -> None:
    data = encode(example_of("episode"), id="a")
    start = time.process_time()
    for _ in range(1000):
        decode(data)
    assert time.process_time() - start < 1.0  # about 10 ms on a quiet machine


def test_an_array_in_a_message_is_checked_when_it_is_used() -> None:
    episode = msgspec.convert(msgspec.to_builtins(example_of("episode"), builtin_types=(bytes,)), Episode)
    broken = Array("i4", (3,), b"\x00")
    turn = msgspec.structs.replace(episode.trajectories[0].turns[0], completion_tokens=broken)
    trajectory = msgspec.structs.replace(episode.trajectories[0], turns=(turn,))
    message = decode(encode(msgspec.structs.replace(episode, trajectories=(trajectory,)), id="a")).message
    with pytest.raises(MessageError, match="has 1 bytes"):
        message.trajectories[0].turns[0].completion_tokens.numpy()
