"""Weights over a real server: what a trainer publishes is what a replica holds, to the last bit, or it is refused."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from astraflow.bus import Bus, EmbeddedServer, wiring
from astraflow.bus.memory import MemoryServer
from astraflow.errors import FencedError, UnreadableValueError, WeightsError
from astraflow.messages import Head, Manifest, VersionKind
from astraflow.weights.codec.changes import changed_elements
from astraflow.weights.codec.tensors import HostTensor
from astraflow.weights.transfer.follower import WeightFollower, first_head
from astraflow.weights.transfer.publisher import WeightPublisher
from astraflow.weights.transfer.update_plan import plan
from tests.actors.contexts import context
from tests.bus.raw import store_raw

FILES = {"config.json": b"{}", "tokenizer.json": bytes(range(256)) * 4}
SHAPE = (64, 1024)


def version(number: int) -> dict[str, HostTensor]:
    """Version `number`: each one changes about one element in a hundred of one of its two tensors."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 16, SHAPE, dtype=np.uint16)
    for step in range(1, number + 1):
        places = np.random.default_rng(step).integers(0, bits.size, bits.size // 100)
        bits.reshape(-1)[places] += 1
    still = np.arange(100, dtype="<f4")
    return {
        "moving": HostTensor("BF16", SHAPE, memoryview(bits.tobytes())),
        "still": HostTensor("F32", (100,), memoryview(still.tobytes())),
    }


def same(left: dict[str, HostTensor], right: dict[str, HostTensor]) -> bool:
    return {name: bytes(tensor.data) for name, tensor in left.items()} == {
        name: bytes(tensor.data) for name, tensor in right.items()
    }


async def head_of(bus: Bus) -> Head:
    return await first_head(bus, "solver")


async def publish(publisher: WeightPublisher, first: int, last: int) -> None:
    for number in range(first, last + 1):
        await publisher.publish(version(number), FILES, version=number, step=number, batch=number)


async def kinds(bus: Bus) -> list[tuple[int, VersionKind]]:
    stream, subject = bus.topology.weights("solver"), bus.topology.manifest("solver")
    entries = [entry async for entry in bus.logs.read(stream, subject=subject, follow=False)]
    return [(entry.message.version, entry.message.kind) for entry in entries if isinstance(entry.message, Manifest)]


async def test_a_follower_holds_every_version_exactly(memory_server: MemoryServer, tmp_path: Path) -> None:
    async with context(memory_server, tmp_path, role="trainer") as ctx:
        publisher, follower = WeightPublisher(ctx, full_every=50), WeightFollower(ctx.bus, "solver")
        for number in range(5):
            await publish(publisher, number, number)
            await follower.advance(await head_of(ctx.bus))
            assert follower.shadow is not None
            assert same(follower.shadow.tensors, version(number))
            changes = follower.behind.changes(follower.shadow)
            assert set(changes) == ({"moving", "still"} if number == 0 else {"moving"})
            assert number == 0 or changed_elements(changes) < 0.011 * SHAPE[0] * SHAPE[1]
            follower.behind.clear()
        assert await kinds(ctx.bus) == [(0, VersionKind.FULL), *((n, VersionKind.DELTA) for n in range(1, 5))]


async def test_a_follower_that_is_behind_takes_the_chain_and_a_newcomer_the_full(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with context(memory_server, tmp_path, role="trainer") as ctx:
        publisher, behind = WeightPublisher(ctx, full_every=3), WeightFollower(ctx.bus, "solver")
        await publish(publisher, 0, 0)
        await behind.advance(await head_of(ctx.bus))
        await publish(publisher, 1, 5)
        newcomer = WeightFollower(ctx.bus, "solver")
        for follower in (behind, newcomer):
            await follower.advance(await head_of(ctx.bus))
            assert follower.shadow is not None
            assert same(follower.shadow.tensors, version(5))
            assert await follower.files(await head_of(ctx.bus)) == FILES


async def test_two_fulls_and_the_chain_since_the_older_are_kept(memory_server: MemoryServer, tmp_path: Path) -> None:
    async with context(memory_server, tmp_path, role="trainer") as ctx:
        await publish(WeightPublisher(ctx, full_every=3), 0, 10)
        full, delta = VersionKind.FULL, VersionKind.DELTA
        assert await kinds(ctx.bus) == [(6, full), (7, delta), (8, delta), (9, delta), (9, full), (10, delta)]


async def test_a_restarted_trainer_begins_with_a_full(memory_server: MemoryServer, tmp_path: Path) -> None:
    async with context(memory_server, tmp_path, role="trainer") as ctx:
        await publish(WeightPublisher(ctx, full_every=50), 0, 2)
        follower = WeightFollower(ctx.bus, "solver")
        await follower.advance(await head_of(ctx.bus))

        restarted = WeightPublisher(ctx, full_every=50)
        restarted.epoch = 2
        assert (await restarted.open()) is not None
        await publish(restarted, 3, 3)
        await follower.advance(await head_of(ctx.bus))

        assert follower.shadow is not None
        assert same(follower.shadow.tensors, version(3))
        assert (await kinds(ctx.bus))[-1] == (3, VersionKind.FULL)


async def test_a_version_without_its_parts_is_refused_and_the_old_one_stays(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with context(memory_server, tmp_path, role="trainer") as ctx:
        publisher, follower = WeightPublisher(ctx), WeightFollower(ctx.bus, "solver")
        await publish(publisher, 0, 0)
        await follower.advance(await head_of(ctx.bus))
        await publish(publisher, 1, 1)
        head = await head_of(ctx.bus)
        subject = f"{ctx.bus.topology.weight_part('solver', 0)}.*"
        await ctx.bus.logs.purge(
            ctx.bus.topology.weights("solver"), below_sequence=head.manifest_sequence, subject=subject
        )

        with pytest.raises(WeightsError):
            await follower.advance(head)

        assert follower.shadow is not None
        assert same(follower.shadow.tensors, version(0))


async def test_a_trainer_whose_head_was_moved_is_fenced(memory_server: MemoryServer, tmp_path: Path) -> None:
    async with context(memory_server, tmp_path, role="trainer") as ctx:
        old, new = WeightPublisher(ctx), WeightPublisher(ctx)
        await publish(old, 0, 0)
        await new.open()
        new.epoch = 1
        await publish(new, 1, 1)
        with pytest.raises(FencedError, match="replaced and must exit"):
            await publish(old, 1, 1)
        assert (await head_of(ctx.bus)).epoch == 1


def timeless(head: Head | None) -> Head:
    """Without how long its weights have been there, which no manifest tells."""
    assert head is not None
    return msgspec.structs.replace(head, ready_s=0.0)


async def test_a_head_that_cannot_be_read_is_written_anew_from_the_log(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with context(nats_server, tmp_path, role="trainer") as ctx:
        publisher = WeightPublisher(ctx, full_every=3)
        await publish(publisher, 0, 4)
        before, key = timeless(await head_of(ctx.bus)), wiring.HEAD.key("solver")
        await store_raw(ctx.bus, ctx.bus.topology.kv_subject(key), b"\xc1junk")
        with pytest.raises(UnreadableValueError, match=r"KV key head\.solver can't be read"):
            await ctx.bus.kv.get(key)
        successor = WeightPublisher(ctx, full_every=3)
        assert timeless(await successor.open()) == before
        assert timeless(await head_of(ctx.bus)) == before

        await store_raw(ctx.bus, ctx.bus.topology.kv_subject(key), b"")
        await publish(successor, 5, 5)  # under a running trainer
        assert (await head_of(ctx.bus)).version == 5


async def test_a_full_comes_when_the_deltas_since_the_last_have_more_than_half_of_its_bytes(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 16, SHAPE, dtype=np.uint16)
    async with context(memory_server, tmp_path, role="trainer") as ctx:
        publisher = WeightPublisher(ctx, full_every=1000)
        fulls: set[int] = set()
        for number in range(40):
            tensors = {"moving": HostTensor("BF16", SHAPE, memoryview(bits.tobytes()))}
            await publisher.publish(tensors, FILES, version=number, step=number, batch=number)
            fulls.add(publisher.full_sequence)
            if len(fulls) == 2:
                break
            bits.reshape(-1)[np.random.default_rng(number).permutation(bits.size)[: bits.size // 7]] += 1
        stream, subject = ctx.bus.topology.weights("solver"), ctx.bus.topology.manifest("solver")
        manifests = [entry.message async for entry in ctx.bus.logs.read(stream, subject=subject, follow=False)]
        assert [manifest.kind for manifest in (manifests[0], manifests[-1])] == [VersionKind.FULL] * 2
        sizes = [manifest.size_bytes for manifest in manifests[1:-1]]
        assert len(sizes) > 1
        assert 2 * sum(sizes[:-1]) <= manifests[0].size_bytes < 2 * sum(sizes)


async def test_a_new_trainer_s_head_still_knows_the_versions_before(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with context(memory_server, tmp_path, role="trainer") as ctx:
        await publish(WeightPublisher(ctx, epoch=1), 0, 2)
        later = WeightPublisher(ctx, epoch=2)
        await later.open()
        await publish(later, 3, 3)
        recent = (await head_of(ctx.bus)).recent
        assert [(one.version, one.step) for one in recent] == [(number, number) for number in range(4)]


def manifest(number: int, size_bytes: int, *, base: int = -1) -> Manifest:
    """A full, or a delta on version `base`; manifests stand at the sequences of their versions, fulls at 100 more."""
    kind = VersionKind.FULL if base < 0 else VersionKind.DELTA
    given = {"policy": "solver", "version": number, "step": number, "batch": number, "epoch": 1, "kind": kind}
    return Manifest(**given, tensors=(), parts=(), size_bytes=size_bytes, base_version=base, base_sequence=max(0, base))


@pytest.mark.parametrize(("full_bytes", "cheapest"), [(5, 15), (15, 20), (30, 20)])
async def test_the_way_with_the_fewest_bytes_is_taken(full_bytes: int, cheapest: int) -> None:
    log = {2: manifest(2, 10, base=1), 3: manifest(3, 10, base=2), 102: manifest(2, full_bytes)}
    head = Head(policy="solver", version=3, step=3, epoch=1, manifest_sequence=3, full_manifest_sequence=102)

    async def read(sequence: int) -> Manifest | None:
        return log.get(sequence)

    assert (await plan(head, 1, read)).size_bytes == cheapest
    assert (await plan(head, None, read)).size_bytes == full_bytes + 10, "a newcomer has no choice"
