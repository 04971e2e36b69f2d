"""What every engine refuses, whatever samples the tokens. Pure; no queues, no streams."""

import math

import numpy as np

from astraflow.engines.base import EngineRequest
from astraflow.errors import EngineError


def check_request(request: EngineRequest, *, vocab_size: int, context_length: int) -> None:
    """Raise EngineError, with the request's id and the limit, for a request that can't be served."""
    prompt, sampling = request.prompt_tokens, request.sampling
    if prompt.ndim != 1 or prompt.size == 0:
        raise EngineError(f"request {request.id!r} has a prompt of shape {prompt.shape}, expected at least one token")
    if not np.issubdtype(prompt.dtype, np.integer):
        raise EngineError(f"request {request.id!r} has prompt tokens of dtype {prompt.dtype}, expected integers")
    low, high = int(prompt.min()), int(prompt.max())
    if low < 0 or high >= vocab_size:
        raise EngineError(
            f"request {request.id!r} holds token {low if low < 0 else high}, the model has tokens 0 to {vocab_size - 1}"
        )
    if not 0 <= request.position < prompt.size:
        raise EngineError(
            f"request {request.id!r} continues at position {request.position} with a prompt of {prompt.size} tokens"
        )
    if sampling.max_new_tokens < 1:
        raise EngineError(f"request {request.id!r} asks for {sampling.max_new_tokens} new tokens, expected at least 1")
    if prompt.size + sampling.max_new_tokens > context_length:
        raise EngineError(
            f"request {request.id!r} needs {prompt.size} prompt + {sampling.max_new_tokens} new tokens, the context "
            f"has {context_length}; shorten the prompt or lower max_new_tokens"
        )
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        raise EngineError(f"request {request.id!r} has temperature {sampling.temperature}, expected 0 or more")
    if not 0 < sampling.top_p <= 1:
        raise EngineError(f"request {request.id!r} has top_p {sampling.top_p}, expected more than 0 and at most 1")
    if sampling.top_k < 0:
        raise EngineError(f"request {request.id!r} has top_k {sampling.top_k}, expected 0 (off) or more")
