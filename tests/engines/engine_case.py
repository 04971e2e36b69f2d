"""One engine under test, and how its streams are read: what the contract and others build on."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from astraflow.engines.base import EngineRequest, PolicyEngine, TokenChunk, TokenStream
from astraflow.messages import Sampling, VersionSpan
from astraflow.weights.codec.changes import Behind
from astraflow.weights.codec.differences import as_integers, difference
from astraflow.weights.codec.host_copy import HostCopy, apply
from astraflow.weights.codec.tensors import HostTensor
from tests.engines.engine_models import prompt

OnUpdate = Literal["continue", "recompute"]


class Load(Protocol):
    """Builds an engine; it is not started."""

    def __call__(
        self, slots: int, weights: Mapping[str, HostTensor], *, on_update: OnUpdate = "continue"
    ) -> PolicyEngine: ...


@dataclass(frozen=True)
class EngineCase:
    """One engine under test."""

    load: Load
    first: Mapping[str, HostTensor]  # the weights that it starts with
    tensors: Mapping[str, HostTensor]  # other weights, for swaps
    vocab_size: int
    seeded: bool = True  # the same seed gives the same token; else only greedy sampling repeats itself
    weights_matter: bool = True  # to its tokens

    def build(self, slots: int) -> PolicyEngine:
        """With the first weights."""
        return self.load(slots, self.first)

    def repeatable(self, temperature: float = 1.0) -> float:
        """This temperature, if the engine repeats itself at it."""
        return temperature if self.seeded else 0.0


class Replica:
    """What a follower has: a shadow, and what the engine is behind it in."""

    def __init__(self, case: EngineCase) -> None:
        digests = {name: tensor.digest() for name, tensor in case.first.items()}
        self._other = case.tensors
        self.shadow = HostCopy.copy_of(0, case.first, digests)
        self.behind = Behind()

    def step(self, seed: int) -> None:
        """The next version: of each tensor a few elements, or nearly all, become those of the other weights."""
        rng = np.random.default_rng(seed)
        new = HostCopy.copy_of(0, self.shadow.tensors, self.shadow.digests).tensors
        for name, tensor in new.items():
            integers = as_integers(tensor)
            chosen = rng.random(len(integers)) < rng.choice([0.0, 0.02, 0.9], p=[0.2, 0.7, 0.1])
            integers[chosen] = as_integers(self._other[name])[chosen]
            if seed % 2 and rng.random() < 0.3:
                integers[:1] ^= 1 << 3
        version = self.shadow.version
        update = difference(
            self.shadow.tensors, new, base_version=version, version=version + 1, base_digests=self.shadow.digests
        )
        apply(update, self.shadow)
        self.behind.add([update])


@dataclass(frozen=True)
class Completion:
    """A stream, read to its end."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[VersionSpan, ...]
    finish_reason: str


def request(id: str, *, count: int = 24, length: int = 12, seed: int = 5, **sampling: object) -> EngineRequest:
    """A request that runs to its length limit unless told otherwise."""
    settings = Sampling(**{"max_new_tokens": count, "ignore_eos": True} | sampling)  # type: ignore[arg-type]
    return EngineRequest(id=id, prompt_tokens=prompt(length, seed), sampling=settings, seed=seed)


def merge(spans: Sequence[VersionSpan]) -> tuple[VersionSpan, ...]:
    """Adjacent spans of one version as one."""
    merged: list[VersionSpan] = []
    for span in spans:
        if merged and merged[-1].version == span.version and merged[-1].end == span.start:
            span = VersionSpan(version=span.version, start=merged.pop().start, end=span.end)
        merged.append(span)
    return tuple(merged)


async def read(stream: TokenStream, position: int = 0) -> Completion:
    """Read to the end, checking what holds for every stream: no gaps, spans over all tokens, one last chunk."""
    chunks: list[TokenChunk] = []
    async for chunk in stream:
        assert not chunks or not chunks[-1].finish_reason, "a chunk came after the last one"
        assert len(chunk.tokens) == len(chunk.logprobs)
        assert len(chunk.tokens) or chunk.finish_reason
        assert chunk.tokens.dtype == np.int32
        for span in chunk.versions:
            assert span.start == position
            position = span.end
        assert sum(span.end - span.start for span in chunk.versions) == len(chunk.tokens)
        chunks.append(chunk)
    assert chunks[-1].finish_reason
    return Completion(
        tuple(int(token) for chunk in chunks for token in chunk.tokens),
        tuple(float(logprob) for chunk in chunks for logprob in chunk.logprobs),
        merge([span for chunk in chunks for span in chunk.versions]),
        chunks[-1].finish_reason,
    )


async def read_all(engine: PolicyEngine, requests: Sequence[EngineRequest]) -> list[Completion]:
    """All at once."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(read(engine.generate(item), item.position)) for item in requests]
    return [task.result() for task in tasks]
