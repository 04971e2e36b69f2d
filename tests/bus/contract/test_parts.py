"""Byte strings as parts."""

import hashlib
import random

import pytest

from astraflow.bus import Bus, Topology
from astraflow.bus.parts import cut
from astraflow.errors import WeightsError
from astraflow.messages import PartRef
from tests.bus.contract.place import Place


@pytest.mark.parametrize("size", [0, 1, 512 << 10, (512 << 10) + 1, 5_000_000])
async def test_bytes_of_any_size_come_back(bus: Bus, topology: Topology, size: int) -> None:
    data = random.Random(size).randbytes(size)
    stream, subject = topology.weights("solver"), topology.weight_part("solver", 1)
    parts = await bus.parts.put(stream, subject, memoryview(data), msg_prefix="w/1")
    assert sum(part.size_bytes for part in parts) == size
    assert [part.digest for part in parts] == [hashlib.sha256(piece).hexdigest() for piece in cut(data, 512 << 10)]
    assert await bus.parts.get(stream, subject, parts) == data


async def test_views_of_wider_items_are_bytes_too(bus: Bus, topology: Topology) -> None:
    data = memoryview(bytes(range(256))).cast("I")
    parts = await bus.parts.put(topology.snapshots, topology.snapshot_part(), data, msg_prefix="s")
    assert await bus.parts.get(topology.snapshots, topology.snapshot_part(), parts) == bytes(range(256))


async def test_equal_parts_are_stored_once(bus: Bus, topology: Topology) -> None:
    data = bytes(3 * (512 << 10))
    parts = await bus.parts.put(topology.snapshots, topology.snapshot_part(), data, msg_prefix="s")
    assert len(parts) == 3
    assert (await bus.logs.state(topology.snapshots)).messages == 1
    assert await bus.parts.get(topology.snapshots, topology.snapshot_part(), parts) == data


async def test_what_was_purged_is_stored_again_by_the_same_put(bus: Bus, topology: Topology) -> None:
    stream, subject = topology.snapshots, topology.snapshot_part()
    first = await bus.parts.put(stream, subject, b"same", msg_prefix="s")
    await bus.logs.purge(stream, below_sequence=(await bus.logs.state(stream)).last_sequence + 1)
    assert await bus.parts.put(stream, subject, b"same", msg_prefix="s") == first
    assert await bus.parts.get(stream, subject, first) == b"same"


async def test_a_missing_part_is_named(bus: Bus, topology: Topology) -> None:
    stream, subject = topology.weights("solver"), topology.weight_part("solver", 1)
    await bus.parts.put(stream, subject, b"there", msg_prefix="w/1")
    missing = PartRef(digest="0" * 64, size_bytes=5)
    with pytest.raises(WeightsError, match=r"part 0{64} .*isn't in stream"):
        await bus.parts.get(stream, subject, [missing])


async def test_a_damaged_part_is_named(bus: Bus, topology: Topology, place: Place) -> None:
    stream, subject = topology.weights("solver"), topology.weight_part("solver", 1)
    (part,) = await bus.parts.put(stream, subject, b"right", msg_prefix="w/1")
    await place.store_raw(bus, f"{subject}.{part.digest}", b"wrong", msg_id="damage")
    with pytest.raises(WeightsError, match=f"part {part.digest} .*damaged"):
        await bus.parts.get(stream, subject, [part])
