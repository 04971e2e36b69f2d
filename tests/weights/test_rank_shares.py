"""A model whose tensors are on two ranks is published without ever being in one place."""

from pathlib import Path

import msgspec
import pytest

from astraflow.bus.memory import MemoryServer
from astraflow.errors import WeightsError
from astraflow.messages import Manifest
from astraflow.weights.codec.tensors import HostTensor
from astraflow.weights.transfer.follower import WeightFollower
from astraflow.weights.transfer.publisher import WeightPublisher
from astraflow.weights.transfer.rank_share import Contribution, LocalRank, Offer, StoreOrder
from tests.actors.contexts import context
from tests.weights import test_publish_and_follow as weights


class FarRank:
    """A rank in another process: only bytes pass."""

    def __init__(self, rank: LocalRank) -> None:
        self._rank = rank

    async def offer(self, version: int) -> Offer:
        data = msgspec.msgpack.encode(await self._rank.offer(version))
        assert len(data) < 2_000, "an offer holds no tensors"
        return msgspec.msgpack.decode(data, type=Offer)

    async def store(self, order: StoreOrder) -> Contribution:
        received = msgspec.msgpack.decode(msgspec.msgpack.encode(order), type=StoreOrder)
        return msgspec.msgpack.decode(msgspec.msgpack.encode(await self._rank.store(received)), type=Contribution)

    def keep(self, version: int) -> None:
        self._rank.keep(version)


def model(number: int) -> tuple[dict[str, HostTensor], dict[str, HostTensor]]:
    """What each rank has: the first one also a tensor that never changes, the second one that changes differently."""
    later = weights.version(number + 20)["moving"]
    return weights.version(number), {"other": later}


async def test_ranks_publish_deltas_and_fulls_that_a_follower_reads_as_one_model(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with context(memory_server, tmp_path, role="trainer") as ctx:
        ranks = [LocalRank(ctx.bus, "solver", prefix=f"rank{index}") for index in range(2)]
        publisher = WeightPublisher(ctx, full_every=3, ranks=[FarRank(rank) for rank in ranks])
        follower = WeightFollower(ctx.bus, "solver")
        for number in range(6):
            shares = model(number)
            for rank, share in zip(ranks, shares, strict=True):
                rank.give((name, tensor) for name, tensor in share.items())
            await publisher.publish_ranks(weights.FILES, version=number, step=number, batch=number)
            newcomer = WeightFollower(ctx.bus, "solver")
            for each in (follower, newcomer):
                await each.advance(await weights.head_of(ctx.bus))
                assert each.shadow is not None
                assert weights.same(each.shadow.tensors, {**shares[0], **shares[1]})
        stream, subject = ctx.bus.topology.weights("solver"), ctx.bus.topology.manifest("solver")
        found = [entry.message async for entry in ctx.bus.logs.read(stream, subject=subject, follow=False)]
        assert all(len(manifest.pieces) == 2 for manifest in found if isinstance(manifest, Manifest))


async def test_a_rank_that_offers_an_old_version_is_refused(memory_server: MemoryServer, tmp_path: Path) -> None:
    async with context(memory_server, tmp_path, role="trainer") as ctx:
        publisher = WeightPublisher(ctx)
        await weights.publish(publisher, 4, 4)
        with pytest.raises(WeightsError, match="version 4 is offered after version 4"):
            await weights.publish(publisher, 4, 4)
