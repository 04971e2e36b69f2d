"""Rotary positions, computed as transformers does, in fp32. D = head size, N = tokens."""

import math

import torch
from torch import Tensor

from astraflow.engines.architecture import DecoderSpec, Llama3Scaling


def inverse_frequencies(spec: DecoderSpec) -> Tensor:
    """float32[D / 2]."""
    exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.int64).float() / spec.head_dim
    plain = 1.0 / spec.rope_theta**exponents
    return plain if spec.rope_scaling is None else _scaled(plain, spec.rope_scaling)


def _scaled(plain: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Low frequencies are divided by the factor, high ones kept, those between interpolated (arXiv:2407.21783 §3.2)."""
    wavelengths = 2 * math.pi / plain
    smooth = (scaling.original_context / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    between = (1 - smooth) * plain / scaling.factor + smooth * plain
    low = wavelengths > scaling.original_context / scaling.low_freq_factor
    high = wavelengths < scaling.original_context / scaling.high_freq_factor
    return torch.where(low, plain / scaling.factor, torch.where(high, plain, between))


def tables(inverse: Tensor, positions_N: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each dtype[N, 1, D / 2]."""
    angles = (positions_N.float().unsqueeze(1) * inverse).unsqueeze(1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x_NHD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x·cos + rotate_half(x)·sin, without building the half-rotated copy."""
    first, second = x_NHD.chunk(2, -1)
    out = torch.empty_like(x_NHD, memory_format=torch.contiguous_format)
    low, high = out.chunk(2, -1)
    torch.mul(first, cos, out=low).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=high).addcmul_(first, sin)
    return out
