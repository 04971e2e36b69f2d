"""What every engine refuses, whatever samples the tokens. Pure; no queues, no streams."""

from collections.abc import Collection

import numpy as np

from astraflow.engines.base import EngineRequest
from astraflow.errors import RequestError
from astraflow.messages import Sampling
from astraflow.messages.sampling import fault_of_sampling

_OFF = Sampling()


def check_request(
    request: EngineRequest, *, vocab_size: int, context_length: int, lacks: Collection[str] = (), kind: str = ""
) -> None:
    """Raise RequestError, with the request's id and the limit, for a request that can't be served.

    Args: lacks: settings of `Sampling` that engines of this `kind` don't have.
    """
    if fault := _fault_of(request, vocab_size) or _lacking(request, lacks, kind):
        raise RequestError(f"request {request.id!r} {fault}", request_id=request.id)
    prompt, wanted = request.prompt_tokens, request.sampling.max_new_tokens
    if prompt.size + wanted > context_length:
        raise RequestError(
            f"request {request.id!r} needs {prompt.size} prompt + {wanted} new tokens, the context has "
            f"{context_length}; shorten the prompt or lower max_new_tokens",
            request_id=request.id,
            fills_context=prompt.size >= context_length,
        )


def _fault_of(request: EngineRequest, vocab_size: int) -> str:
    """What is wrong besides its length; "" if nothing is."""
    prompt = request.prompt_tokens
    if prompt.ndim != 1 or prompt.size == 0:
        return f"has a prompt of shape {prompt.shape}, expected at least one token"
    if not np.issubdtype(prompt.dtype, np.integer):
        return f"has prompt tokens of dtype {prompt.dtype}, expected integers"
    low, high = int(prompt.min()), int(prompt.max())
    if low < 0 or high >= vocab_size:
        return f"holds token {low if low < 0 else high}, the model has tokens 0 to {vocab_size - 1}"
    if not 0 <= request.position < prompt.size:
        return f"continues at position {request.position} with a prompt of {prompt.size} tokens"
    return f"can't be sampled: {fault}" if (fault := fault_of_sampling(request.sampling)) else ""


def _lacking(request: EngineRequest, lacks: Collection[str], kind: str) -> str:
    """Which setting this engine doesn't have, though the request needs it; "" = none."""
    for name in sorted(lacks):
        value = getattr(request.sampling, name)
        if value != getattr(_OFF, name):
            return f"asks for {name} = {value}, which the {kind} engine doesn't have; leave it out"
    return ""
