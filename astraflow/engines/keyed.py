"""Counter-based randomness: a number for every (seed, position), without a generator's state.

Not for cryptography. Invariant: the result for a pair depends on nothing else, so a sampled token depends neither on
the requests decoded beside it nor on where a completion is continued.
Source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators" (SplitMix64's finaliser).
"""

import numpy as np
from numpy.typing import NDArray

from astraflow.messages.mixing import GOLDEN, mixed

_MASK = (1 << 64) - 1


def seed_bits(seed: int) -> int:
    """Any integer as 64 bits; a negative or longer seed wraps."""
    return seed & _MASK


def keyed_bits(seeds: int | NDArray[np.uint64], positions_B: NDArray[np.int64]) -> NDArray[np.uint64]:
    """64 well-mixed bits per (seed, position). Args: seeds: one for all, or uint64[B]. Returns: uint64[B]."""
    key = np.array([seed_bits(seeds)], dtype=np.uint64) if isinstance(seeds, int) else seeds
    counter = positions_B.astype(np.uint64) + np.uint64(1)  # wraps for negative positions
    return mixed(mixed(key + GOLDEN) + counter * GOLDEN)


def keyed_uniform(seeds_B: NDArray[np.uint64], positions_B: NDArray[np.int64]) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1) with 53 random bits. Returns: float64[B]."""
    return (keyed_bits(seeds_B, positions_B) >> np.uint64(11)).astype(np.float64) * 2.0**-53
