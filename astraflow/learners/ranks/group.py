"""The processes of one learner, as its computation sees them: a `Team` over a process group of torch.

Not here: who starts them, what they are told to do (`control.py`). What they exchange is tensors and small bytes, never
pickled objects.
"""

import datetime
import os
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from astraflow.learners.packing import MicroBatch
from astraflow.learners.ranks.dealing import deal


class Ranks:
    """A `Team` of all ranks of the default process group."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def own(self, plan: Sequence[MicroBatch]) -> list[MicroBatch]:
        return deal(plan, self.size)[self.rank]

    def add(self, tensor: Tensor) -> None:
        dist.all_reduce(tensor)

    def largest(self, tensor: Tensor) -> None:
        dist.all_reduce(tensor, dist.ReduceOp.MAX)

    def exchange(self, data: bytes) -> list[bytes]:
        """What each rank gives, to all of them."""
        sizes = torch.zeros(self.size, dtype=torch.int64)
        sizes[self.rank] = len(data)
        self.add(sizes)
        all_RB = torch.zeros(self.size, int(sizes.max()), dtype=torch.uint8)
        all_RB[self.rank, : len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else 0
        dist.all_reduce(all_RB)  # each row has one that isn't 0
        return [bytes(row[:size].numpy()) for row, size in zip(all_RB, sizes.tolist(), strict=True)]


def join(*, rank: int, size: int, port: int, timeout_s: float) -> None:
    """Make the default process group, of processes on this machine; returns when all ranks are there.

    The timeout is also that of every collective, and of the groups that torch makes of parts of the ranks.

    Raises: RuntimeError if a rank stays away for `timeout_s`.
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # else it looks up this machine's name, which need not resolve
    timeout = datetime.timedelta(seconds=timeout_s)
    dist.distributed_c10d.default_pg_timeout = timeout
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size, timeout=timeout)


def part() -> None:
    """Leave the default process group."""
    dist.destroy_process_group()
