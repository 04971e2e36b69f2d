"""Which rank computes which passes of a plan that was made for the whole batch.

Whole passes are dealt out: a batch that was cut before it is planned would be packed into other rows, whose bf16
gradients differ by 6e-3. Pure. Invariant: every pass is on one rank, and all ranks have the same number of passes,
because each pass is a row of collectives that all ranks take part in.
"""

from collections.abc import Sequence

from astraflow.learners.packing import MicroBatch, empty_micro_batch


def deal(plan: Sequence[MicroBatch], ranks: int) -> list[list[MicroBatch]]:
    """One list for each rank: the heaviest pass first, to the rank with the least; then filled up with empty ones."""
    loads, lists = [0] * ranks, [list[MicroBatch]() for _ in range(ranks)]
    for micro_batch in sorted(plan, key=lambda one: -one.tokens_BL.size):
        rank = min(range(ranks), key=lambda at: (loads[at], at))
        loads[rank] += micro_batch.tokens_BL.size
        lists[rank].append(micro_batch)
    most = max(map(len, lists))
    return [own + [empty_micro_batch()] * (most - len(own)) for own in lists]
