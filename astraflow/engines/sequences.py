"""A request as the decode loop sees it, and what a model must offer to be batched.

No threads and no asyncio: everything here is touched by the engine's worker thread only, unless it says otherwise.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from astraflow.engines.base import EngineRequest
from astraflow.weights.codec.changes import Change


@dataclass(eq=False)
class Running:
    """One request's tokens. `known` of them exist, `computed` of them are in the model's cache.

    A stale one still has the cache of older weights, which counts for nothing: `computed` is 0.
    """

    request: EngineRequest
    tokens: NDArray[np.int32]  # [prompt + max_new_tokens]; entries [0, known) are valid
    known: int
    computed: int = 0
    stale: bool = False
    stop_ids: frozenset[int] = frozenset()
    twins: list["Running"] = field(default_factory=list)  # equal prompts that wait for this one's prefill
    waits_for_twin: bool = False

    @classmethod
    def of(cls, request: EngineRequest, eos_token_ids: Sequence[int]) -> "Running":
        sampling = request.sampling
        prompt = request.prompt_tokens
        tokens = np.zeros(prompt.size + sampling.max_new_tokens, dtype=np.int32)
        tokens[: prompt.size] = prompt
        stop_ids = frozenset((*sampling.stop_token_ids, *(() if sampling.ignore_eos else eos_token_ids)))
        return cls(request, tokens, prompt.size, stop_ids=stop_ids)

    @property
    def generated(self) -> int:
        """Tokens sampled for this request so far."""
        return self.known - int(self.request.prompt_tokens.size)


@dataclass(frozen=True)
class Segment:
    """The next `count` known tokens of a sequence, to be computed in this step."""

    sequence: Running
    count: int


class BatchModel(Protocol):
    """A model with a cache per sequence. One worker calls it, `check` and `prepare` excepted."""

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that its cache can ever hold."""
        ...

    def admit(self, sequence: Running) -> bool:
        """Reserve cache for all tokens of a sequence; False: no room now. Sets `computed` to what could be reused."""
        ...

    def fork(self, source: Running, target: Running, count: int) -> None:
        """Give an admitted sequence the cache of another's first `count` tokens, which are its own too, or of fewer.

        Of fewer only if `count` is less than what the other has. Sets `computed` to what it gave.
        """
        ...

    def restart(self, sequence: Running) -> None:
        """Drop an admitted sequence's cache but keep its reservation: `computed` is 0."""
        ...

    def forward(self, segments: Sequence[Segment]) -> Tensor:
        """Compute segments of different sequences and advance their `computed`.

        Returns: float[S, V], the logits after the last token of each segment that completes, in order.
        """
        ...

    def release(self, sequence: Running) -> None:
        """Free an admitted sequence's cache."""
        ...

    def check(self, changes: Mapping[str, Change]) -> None:
        """Raise WeightsError if these can't be written. Safe from any thread."""
        ...

    def prepare(self, changes: Mapping[str, Change]) -> Callable[[], None]:
        """Do all that can be done for checked changes beside the decode loop, in any thread, one call at a time.

        Returns what puts them in place, for the worker: caches of running sequences stay, caches of older weights
        aren't reused. If it is not called, the next changes must cover these too.
        """
        ...
