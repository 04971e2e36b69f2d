"""Small models with every kind of bits, for the delta tests."""

from collections.abc import Mapping

import numpy as np
from hypothesis import strategies as st

from astraflow.weights.codec.tensors import ITEM_SIZES, HostTensor

FLOATS = ("F64", "F32", "F16", "BF16")
SHAPES = ((), (0,), (1,), (3,), (7, 0, 2), (5, 13), (40, 33), (2, 3, 4))
# Bits of +0, −0, a NaN with payload, a signalling NaN, the smallest denormal and −inf, by item size.
SPECIAL_BITS = {
    1: (0, 0x80, 0x7F, 0xFF, 1, 0x81),
    2: (0, 0x8000, 0x7FC1, 0x7F81, 1, 0xFF80),
    4: (0, 0x8000_0000, 0x7FC0_1234, 0x7F80_0001, 1, 0xFF80_0000),
    8: (0, 1 << 63, 0x7FF8_0000_0000_1234, 0x7FF0_0000_0000_0001, 1, 0xFFF0_0000_0000_0000),
}


def random_tensor(dtype: str, shape: tuple[int, ...], seed: int) -> HostTensor:
    """Any bits, a quarter of them special ones."""
    rng = np.random.default_rng(seed)
    width = ITEM_SIZES[dtype]
    bits = rng.integers(0, 256, (int(np.prod(shape)), width), dtype=np.uint8).reshape(-1).view(f"<u{width}")
    special = rng.random(len(bits)) < 0.25
    bits[special] = rng.choice(np.array(SPECIAL_BITS[width], f"<u{width}"), int(special.sum()))
    return HostTensor(dtype, shape, memoryview(bits.view(np.uint8)))


def changed_tensor(tensor: HostTensor, density: float, seed: int) -> HostTensor:
    """About `density` of the elements differ: half of them by ±1, the rest by any bits or a flipped sign."""
    rng = np.random.default_rng(seed)
    width = ITEM_SIZES[tensor.dtype]
    bits = np.frombuffer(tensor.data, f"<u{width}").copy()
    where = np.flatnonzero(rng.random(len(bits)) < density)
    steps = np.array([1, -1], "i8").astype(f"<i{width}").view(f"<u{width}")[rng.integers(0, 2, len(where))]
    anything = rng.integers(0, 256, (len(where), width), dtype=np.uint8).reshape(-1).view(f"<u{width}")
    sign = np.array(1 << (8 * width - 1), f"<u{width}")
    kind = rng.integers(0, 4, len(where))
    bits[where] = np.where(kind < 2, bits[where] + steps, np.where(kind == 2, anything, bits[where] ^ sign))
    return HostTensor(tensor.dtype, tensor.shape, memoryview(bits.view(np.uint8)))


def digests_of(tensors: Mapping[str, HostTensor]) -> dict[str, str]:
    return {name: tensor.digest() for name, tensor in tensors.items()}


def bytes_of(tensors: Mapping[str, HostTensor]) -> dict[str, bytes]:
    return {name: bytes(tensor.data) for name, tensor in tensors.items()}


def bf16_model(elements: int, seed: int = 0) -> dict[str, HostTensor]:
    """Two bf16 tensors of normally distributed weights."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, size in (("embed.weight", elements - elements // 4), ("norm.weight", elements // 4)):
        values = (rng.standard_normal(size, dtype=np.float32) * 0.05).view("<u4") >> 16
        tensors[name] = HostTensor("BF16", (size,), memoryview(values.astype("<u2").view(np.uint8)))
    return tensors


@st.composite
def models(draw: st.DrawFn, versions: int = 2) -> list[dict[str, HostTensor]]:
    """Consecutive versions of one model with up to four tensors of mixed dtypes, shapes and densities of change."""
    specs = draw(st.lists(st.tuples(st.sampled_from((*FLOATS, "I8", "BOOL")), st.sampled_from(SHAPES)), max_size=4))
    seed = draw(st.integers(0, 2**32 - 1))
    model = {f"t{i}": random_tensor(dtype, shape, seed + i) for i, (dtype, shape) in enumerate(specs)}
    chain = [model]
    for version in range(1, versions):
        densities = draw(st.lists(st.sampled_from((0.0, 0.002, 0.02, 0.5, 1.0)), min_size=len(specs), max_size=4))
        seeds = [seed + 1000 * version + i for i in range(len(specs))]
        chain.append(
            {
                name: changed_tensor(tensor, density, one_seed)
                for (name, tensor), density, one_seed in zip(chain[-1].items(), densities, seeds, strict=False)
            }
        )
    return chain
