"""How many groups a policy may have in the works: credit, and the yield that scales it.

It doesn't choose tasks. Unit: groups. Invariant: credit never asks for more than the trainer can take without a sample
going past `max_staleness`, nor for more than its remaining steps.
"""

# One closed group moves the yield by a sixteenth, so about the last sixteen groups count.
_YIELD_MOMENTUM = 1 / 16
# At a yield of 0 credit would be endless: at most eight groups are in flight for one that is wanted.
LEAST_YIELD = 1 / 8


def next_yield(observed: float, passed: bool) -> float:
    """The smoothed fraction of closed groups that pass the filters, after one more group; in [1/8, 1].

    It starts at 1, so that nothing is issued twice over before there is a reason to.
    """
    moved = observed + _YIELD_MOMENTUM * (float(passed) - observed)
    return min(1.0, max(LEAST_YIELD, moved))


def bound(*, max_staleness: int, consumed: int, remaining_steps: int, batch_groups: int) -> int:
    """How many groups may have been accepted so far, emitted ones included.

    Args:
        consumed: batches that the trainer has finished, trained or skipped.
        remaining_steps: optimizer steps that the trainer still has to do.
    Source: the bound of arXiv:2505.24298 §5.1 in groups.
    """
    return (consumed + min(max_staleness + 1, max(0, remaining_steps))) * batch_groups


def credit(allowed: int, *, accepted: int, in_flight: int, observed_yield: float) -> float:
    """Groups that may be issued now, `allowed − (accepted + in flight × yield)`; ≤ 0 means none.

    Args:
        allowed: see `bound`.
        accepted: groups emitted or buffered.
        in_flight: groups issued and not closed.
    """
    return allowed - (accepted + in_flight * observed_yield)
