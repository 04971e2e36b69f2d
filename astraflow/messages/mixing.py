"""splitmix64's finaliser on whole arrays: bits that look random and are the same in every process and numpy release.

No generator: who draws makes its own keys. numpy's own generators and shuffles may differ between releases.
"""

import numpy as np
from numpy.typing import NDArray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # splitmix64's increment: 2^64 over the golden ratio


def mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 64-bit words in which every bit of the input changes about half of the output's."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed_bits: NDArray[np.uint64] = bits ^ (bits >> np.uint64(31))
    return mixed_bits
