"""A small model whose loader does what SGLang's do: fuses, shards by rank, pads a vocabulary, ties, renames.

Not SGLang: its own classes are used in `sglang_loader_live.py`.
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

HIDDEN, FFN, HEADS, KV_HEADS, HEAD = 8, 12, 4, 2, 6
VOCAB, PADDED = 37, 48
EXPERTS = 2
RANKS = 2


class Fused(nn.Module):
    """One rank of two. The checkpoint's names are those of `checkpoint`."""

    def __init__(self, rank: int, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.rank = rank

        def zeros(*shape: int, kind: torch.dtype = dtype) -> nn.Parameter:
            return nn.Parameter(torch.zeros(*shape, dtype=kind), requires_grad=False)

        self.embed = zeros(PADDED // RANKS, HIDDEN)
        self.head = self.embed  # tied
        self.qkv = zeros((HEADS + 2 * KV_HEADS) * HEAD // RANKS, HIDDEN)
        self.bias = zeros((HEADS + 2 * KV_HEADS) * HEAD // RANKS)
        self.out = zeros(HIDDEN, HEADS * HEAD // RANKS)
        self.gate_up = zeros(2 * FFN // RANKS, HIDDEN)
        self.down = zeros(HIDDEN, FFN // RANKS)
        self.experts = zeros(EXPERTS, HIDDEN, FFN)  # transposed, filled by threads
        self.norm = zeros(HIDDEN)
        self.router = zeros(EXPERTS, HIDDEN, kind=torch.float32)  # wider than the checkpoint
        self.scale = zeros(1)  # by value
        self.absorbed = zeros(HIDDEN, HIDDEN)
        self.derived = torch.zeros(HIDDEN, HIDDEN, dtype=dtype)
        self.swapped = zeros(3)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """As SGLang's: any subset of the checkpoint, by its names."""
        with ThreadPoolExecutor(2) as pool:
            for future in [self._load(name, tensor, pool) for name, tensor in weights]:
                if future is not None:
                    future.result()
        self.derived = self.absorbed.data @ self.absorbed.data

    def _load(self, name: str, tensor: Tensor, pool: ThreadPoolExecutor):  # type: ignore[no-untyped-def]
        rows = {"q": (0, HEADS), "k": (HEADS, KV_HEADS), "v": (HEADS + KV_HEADS, KV_HEADS)}
        kind, _, suffix = name.partition(".")
        if kind in rows:
            start, count = (each * HEAD // RANKS for each in rows[kind])
            mine = tensor.narrow(0, self.rank * count, count)
            getattr(self, "bias" if suffix == "bias" else "qkv").data.narrow(0, start, count).copy_(mine)
        elif kind in ("gate", "up"):
            half = FFN // RANKS
            place = self.gate_up.data.narrow(0, half * (kind == "up"), half)
            place.copy_(tensor.to(place.device).narrow(0, self.rank * half, half))
        elif kind in ("out", "down"):
            columns = getattr(self, kind).shape[1]
            getattr(self, kind).data.copy_(tensor.narrow(1, self.rank * columns, columns))
        elif kind == "embed":
            assert tensor.shape == (VOCAB, HIDDEN)
            mine = tensor[self.rank * PADDED // RANKS :][: PADDED // RANKS]
            self.embed[: len(mine)].data.copy_(mine)
            self.embed[len(mine) :].data.fill_(0)
        elif kind == "expert":
            return pool.submit(self.experts.data[int(suffix)].copy_, tensor.t())
        elif kind in ("norm", "router", "absorbed"):
            getattr(self, kind).data.copy_(tensor)
        elif kind == "scale":
            self.scale.data.fill_(tensor.item())
        elif kind == "swapped":
            self.swapped.data = tensor.clone()
        elif kind == "scaled":
            self.norm.data.copy_(tensor * 2)
        return None


def checkpoint(generator: torch.Generator, dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    """Random tensors under the names and in the shapes that `Fused.load_weights` takes."""
    shapes: dict[str, tuple[int, ...]] = {
        "embed.weight": (VOCAB, HIDDEN),
        "q.weight": (HEADS * HEAD, HIDDEN),
        "k.weight": (KV_HEADS * HEAD, HIDDEN),
        "v.weight": (KV_HEADS * HEAD, HIDDEN),
        "q.bias": (HEADS * HEAD,),
        "out.weight": (HIDDEN, HEADS * HEAD),
        "gate.weight": (FFN, HIDDEN),
        "up.weight": (FFN, HIDDEN),
        "down.weight": (HIDDEN, FFN),
        "expert.0": (FFN, HIDDEN),
        "expert.1": (FFN, HIDDEN),
        "norm.weight": (HIDDEN,),
        "router.weight": (EXPERTS, HIDDEN),
        "elsewhere.weight": (5, 3),
    }
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}
