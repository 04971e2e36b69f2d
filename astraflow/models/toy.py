"""The toy model: 64 weights and a config, no torch, no tokenizer.

It predicts nothing: the toy engine's tokens don't depend on the weights, so tests can tell which tokens to expect while
versions still travel, apply and count as they do for real models.
"""

import json
from collections.abc import Mapping

import numpy as np

from astraflow.weights.codec.tensors import HostTensor

TOY_TENSOR = "toy.weight"
TOY_VOCAB = 64
TOY_EOS = 0
_TOY_CONTEXT = 4096


def toy_model() -> tuple[Mapping[str, HostTensor], Mapping[str, bytes]]:
    """Version 0 of the toy model: ({"toy.weight": F32[64] of zeros}, {"config.json": …})."""
    weights = np.zeros(TOY_VOCAB, dtype="<f4")
    config = {
        "model_type": "toy",
        "vocab_size": TOY_VOCAB,
        "eos_token_id": TOY_EOS,
        "max_position_embeddings": _TOY_CONTEXT,
    }
    tensor = HostTensor("F32", (TOY_VOCAB,), memoryview(weights.tobytes()))
    return {TOY_TENSOR: tensor}, {"config.json": json.dumps(config, indent=2).encode()}
