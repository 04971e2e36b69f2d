"""A generation that is asked for, and what comes of it: the vocabulary between agents and whoever completes calls."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from astraflow.messages import Sampling, VersionSpan


@dataclass(frozen=True, kw_only=True)
class Completion:
    """A finished generation. C = its tokens."""

    tokens: NDArray[np.int32]  # [C]
    logprobs: NDArray[np.float32]  # [C]
    versions: tuple[VersionSpan, ...]
    finish_reason: str
    attempts: int
    replica: str = ""  # incarnation of the one that finished it
    stop_letters: int = 0  # at the end of the text, from the stop string on that ended it; 0 = none did


@dataclass(frozen=True, kw_only=True)
class Call:
    """What to generate. `id` orders the requests of a cohort; two calls at the same time may have the same one.

    `prefers`: incarnation of the replica that holds the prompt's prefix; "" = none does.
    """

    id: str
    policy: str
    prompt_tokens: NDArray[np.int32]
    sampling: Sampling
    seed: int
    min_version: int = 0
    cohort_id: str = ""
    cohort_size: int = 0
    prefers: str = ""
    decode: Callable[[Sequence[int]], str] | None = None  # for stop strings; None: the call has none


class Generates(Protocol):
    """Anything that completes a call, in service the GenerationClient."""

    async def generate(self, call: Call) -> Completion: ...
