"""Whole tensors of a sharded model on the rank that owns them, bucket by bucket: no rank gathers what it doesn't own.

Not here: what an owner does with them. Invariant: an owner gets the bits that the pieces hold, cast to the dtype asked
for before they travel.
"""

from collections.abc import Iterator, Mapping

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from astraflow.learners.ranks.group import Ranks
from astraflow.learners.ranks.placement import Block, block_of, local, speaks_for

_BUCKET_ELEMENTS = 64 << 20  # on their way at once, of all ranks


class Owners:
    """Who owns which tensor, and where each rank's pieces lie; made by all ranks together, with the same names."""

    def __init__(self, tensors: Mapping[str, Tensor], owner: Mapping[str, int], ranks: Ranks) -> None:
        self._tensors, self._owner, self._ranks = tensors, owner, ranks
        own = {name: block_of(t) for name, t in tensors.items() if speaks_for(t, ranks.rank)}
        found = ranks.exchange(msgspec.msgpack.encode(own))
        self._blocks = [msgspec.msgpack.decode(data, type=dict[str, Block]) for data in found]

    @torch.no_grad()
    def gathered(self, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """This rank's whole tensors, one after the other. All ranks iterate to the end."""
        for names in self._buckets():
            by_owner = [[n for n in names if self._owner[n] == rank] for rank in range(self._ranks.size)]
            yield from self._exchanged(by_owner, dtype)

    def _exchanged(self, by_owner: list[list[str]], dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        rank, mine = self._ranks.rank, by_owner[self._ranks.rank]
        pieces = [self._piece(name, dtype) for names in by_owner for name in names]
        sent = torch.cat(pieces) if pieces else torch.empty(0, dtype=dtype)
        outgoing = [sum(self._size(rank, name) for name in names) for names in by_owner]
        incoming = [sum(self._size(source, name) for name in mine) for source in range(self._ranks.size)]
        received = torch.empty(sum(incoming), dtype=dtype, device=sent.device)
        dist.all_to_all_single(received, sent, incoming, outgoing)
        starts = [sum(incoming[:source]) for source in range(self._ranks.size)]
        for name in mine:
            whole = torch.empty(tuple(self._tensors[name].shape), dtype=dtype, device=sent.device)
            for source, blocks in enumerate(self._blocks):
                if name in blocks:
                    block, start = Block(*blocks[name]), starts[source]
                    whole[block.slices] = received[start : start + block.size].view(block.shape)
                    starts[source] += block.size
            yield name, whole

    def _piece(self, name: str, dtype: torch.dtype) -> Tensor:
        own = local(self._tensors[name]).detach().reshape(-1)
        return (own if name in self._blocks[self._ranks.rank] else own[:0]).to(dtype)

    def _size(self, rank: int, name: str) -> int:
        block = self._blocks[rank].get(name)
        return 0 if block is None else Block(*block).size

    def _buckets(self) -> Iterator[list[str]]:
        bucket, size = list[str](), 0
        for name, tensor in self._tensors.items():
            bucket.append(name)
            size += tensor.numel()
            if size >= _BUCKET_ELEMENTS:
                yield bucket
                bucket, size = [], 0
        if bucket:
            yield bucket
