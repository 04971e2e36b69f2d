"""Who computes a step together: one process, or the ranks of `learners/ranks`.

Everything that a learner computes over a whole batch is a sum, or a largest value, of what each rank finds in its own
micro-batches; so this is all that a learner must know of the others. Not here: how tensors are cut among ranks.
Invariant: after `add` and `largest` every rank holds the same bits, so every rank decides alike.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from astraflow.learners.packing import MicroBatch


class Team(Protocol):
    """The processes that compute one learner's steps; all of them make the same calls in the same order."""

    rank: int
    size: int

    def own(self, plan: Sequence[MicroBatch]) -> list[MicroBatch]:
        """This rank's passes of the whole batch's plan; every rank has the same number of them."""
        ...

    def add(self, tensor: Tensor) -> None:
        """In place: the sum over all ranks."""
        ...

    def largest(self, tensor: Tensor) -> None:
        """In place: each element's largest value of any rank."""
        ...

    def exchange(self, data: bytes) -> list[bytes]:
        """What each rank gives, to all of them, in their order."""
        ...


class Alone:
    """A learner of one process."""

    rank, size = 0, 1

    def own(self, plan: Sequence[MicroBatch]) -> list[MicroBatch]:
        return list(plan)

    def add(self, tensor: Tensor) -> None:
        """It is the sum already."""

    def largest(self, tensor: Tensor) -> None:
        """It is the largest already."""

    def exchange(self, data: bytes) -> list[bytes]:
        return [data]
