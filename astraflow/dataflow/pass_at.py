"""What several answers per task say: avg@n, pass@k and how sure that is. Pure; it knows nothing of episodes.

Axes: Q tasks (questions) of an evaluation.
"""

import math
from collections.abc import Sequence


def pass_at(k: int, *, answers: int, right: int) -> float:
    """The chance that at least one of k answers is right, estimated without bias from `answers` ≥ k of them.

    1 − C(answers − right, k) / C(answers, k). Source: arXiv:2107.03374 §2.1.
    """
    assert 1 <= k <= answers, (k, answers)
    return 1.0 - math.comb(answers - right, k) / math.comb(answers, k)


def ladder(repeats: int) -> tuple[int, ...]:
    """The k that are reported for so many answers per task: 2, 4, 8, … and all of them; () for one answer."""
    powers = [1 << exponent for exponent in range(1, repeats.bit_length())]
    return tuple(sorted({*powers, repeats} - {1}))


def standard_error(means_Q: Sequence[float]) -> float | None:
    """Of the mean over tasks, from how the tasks differ; None for fewer than two."""
    count = len(means_Q)
    if count < 2:
        return None
    mean = math.fsum(means_Q) / count
    return math.sqrt(math.fsum((each - mean) ** 2 for each in means_Q) / (count - 1) / count)
