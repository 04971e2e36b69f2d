"""The seam between a policy actor and whatever samples tokens: in-process decoder, SGLang server, or a toy.

An engine knows nothing of the bus. Its methods are called from one asyncio loop; compute happens elsewhere.

Which logprob is stored: of the temperature-scaled distribution, before top-k/top-p renormalisation (what SGLang
reports too); for greedy sampling (temperature 0) of the unscaled distribution.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from astraflow.messages import Sampling, VersionSpan
from astraflow.weights.codec.changes import Change
from astraflow.weights.codec.tensors import HostTensor


@dataclass(frozen=True, kw_only=True)
class EngineRequest:
    """One sequence to extend. Token c of its completion is sampled with randomness keyed by (seed, c)."""

    id: str
    prompt_tokens: NDArray[np.int32]  # [P]; for a continuation the prompt and the tokens so far
    sampling: Sampling  # max_new_tokens is what remains
    seed: int
    position: int = 0  # completion tokens that the prompt already holds; keys the randomness


@dataclass(frozen=True, kw_only=True)
class TokenChunk:
    """Newly sampled tokens of one request, in order, without gaps."""

    tokens: NDArray[np.int32]  # [C]
    logprobs: NDArray[np.float32]  # [C]
    versions: tuple[VersionSpan, ...]  # coordinates: all completion tokens, so the first starts at request.position
    finish_reason: str = ""  # "" while running; stop | length | abort


@dataclass(frozen=True, kw_only=True)
class EngineLoad:
    """What admission needs to know."""

    slots: int
    running: int
    queued: int
    tokens_per_s: float  # over the last seconds
    version: int
    extra: Mapping[str, float] = field(default_factory=dict)  # gauges of its own: names from messages/metric_names.py
    about: str = ""  # what serves, for people; "" = nothing that the run file doesn't say
    error: str = ""  # why the engine can't serve any more; "" = it can


class TokenStream(Protocol):
    """A running completion: iterate it to the end, or close it to cancel the request."""

    def __aiter__(self) -> "TokenStream": ...

    async def __anext__(self) -> TokenChunk:
        """All tokens since the last call. Raises EngineError if the engine fails or stops serving."""
        ...

    async def aclose(self) -> None:
        """Cancel what is left of the request. Idempotent."""
        ...


class PolicyEngine(Protocol):
    """Serves one policy. Raises EngineError for what it can't serve, WeightsError for weights that don't fit."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a completion."""
        ...

    @property
    def context_length(self) -> int:
        """Prompt and completion tokens together never exceed this."""
        ...

    async def start(self) -> None:
        """Load and become able to serve."""
        ...

    async def stop(self) -> None:
        """Abort what runs and free everything. Idempotent."""
        ...

    def generate(self, request: EngineRequest) -> TokenStream:
        """Stream a completion; the last chunk has a finish_reason. Closing the stream cancels the request.

        The request is taken at the call, not at the first iteration.
        Raises EngineError at once if prompt + max_new_tokens exceed the context length, a token is out of range, the
        id is already running, or the engine isn't started.
        """
        ...

    def generate_together(self, requests: Sequence[EngineRequest]) -> Sequence[TokenStream]:
        """Like `generate` for each, but all are admitted in this order before the next decode step.

        No step sees a part of them (as far as slots and memory reach), so an engine that was idle repeats itself to the
        last bit. Raises EngineError, with none of them taken, if one is refused.
        """
        ...

    async def cancel(self, request_id: str) -> None:
        """End a request; its stream finishes with `abort`. Unknown ids are ignored."""
        ...

    def takes_elements(self, name: str) -> bool:
        """Whether `swap` takes changed elements of this tensor; else it wants the whole of it."""
        ...

    async def swap(self, version: int, changes: Mapping[str, Change]) -> float:
        """Put new weights in place between two decode steps; running requests go on. Returns the pause in seconds.

        They go on as `on_update` in the engine's section says: with the keys and values that they have, or after these
        were computed anew, which is not part of the pause: meanwhile they get no tokens, and others do. New requests
        never reuse what older weights computed.

        All other work is done beside decoding, before the pause; until the end `changes` must not change. They cover
        what differs from the version that is served *and* from versions of earlier swaps that did not return: then a
        swap after a failed or cancelled one leaves exactly the new version. It never serves a mix of two.

        Raises: WeightsError, with nothing changed, if a name or shape or dtype does not fit; EngineError if the engine
            fails or stops, and then it serves nothing any more.
        """
        ...

    def load(self) -> EngineLoad:
        """The current load; cheap."""
        ...


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Logprobs of given tokens, at temperature 1."""

    logprobs: NDArray[np.float32]  # [C], of the last C tokens of the row
    dtype: str  # float32 | bfloat16: computed in


@runtime_checkable
class Scoring(Protocol):
    """An engine that can say what it makes of tokens that it didn't sample."""

    async def score(self, tokens: NDArray[np.int32], count: int) -> Scored:
        """Of the last `count` tokens of a row, by the way on which it samples: the prompt in pieces, then token by
        token. For an engine that serves no request yet. Raises EngineError."""
        ...


@runtime_checkable
class Verifiable(Protocol):
    """An engine whose weights are out of this process's sight, so that they are looked at now and then."""

    async def verify(self, tensors: Mapping[str, HostTensor]) -> str:
        """Whether it serves exactly these, the whole model: "" if so, else what was wrong; afterwards it does.

        Raises like `swap`.
        """
        ...
