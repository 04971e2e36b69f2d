"""Logprobs of tokens that were given, computed on the very way on which a model samples: cache, pieces, decode steps.

It samples nothing. Axes: C token that is scored.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from astraflow.engines.base import EngineRequest
from astraflow.engines.sequences import BatchModel, Running, Segment
from astraflow.messages import Sampling


def score(model: BatchModel, tokens: NDArray[np.int32], count: int) -> list[float] | None:
    """Of the last `count` tokens: what is before them in two pieces, then one by one. None: no room in the cache."""
    assert 0 < count < tokens.size, (count, tokens.size)
    prompt = tokens.size - count
    request = EngineRequest(id="score", prompt_tokens=tokens, sampling=Sampling(max_new_tokens=0), seed=0)
    sequence = Running.of(request, ())
    if not model.admit(sequence):
        return None
    try:
        sequence.known = prompt
        for piece in (prompt // 2 - sequence.computed, prompt - prompt // 2):
            logits = model.forward([Segment(sequence, piece)]) if piece > 0 else torch.empty(0, 0)
        found: list[float] = []
        for position in range(prompt, tokens.size):
            found.append(float(torch.log_softmax(logits[0].float(), -1)[int(tokens[position])]))
            sequence.known += 1
            if sequence.known < tokens.size:
                logits = model.forward([Segment(sequence, 1)])
        return found
    finally:
        model.release(sequence)
