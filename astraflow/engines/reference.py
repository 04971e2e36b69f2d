"""What transformers makes of a row of tokens, in fp32: the judge where learner and engine differ. Slow, rarely run."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from astraflow.engines.fallback import TransformersModel
from astraflow.models.derived import derived_config
from astraflow.models.facts import read_facts
from astraflow.weights.codec.tensors import HostTensor


def transformers_logprobs(
    files: Mapping[str, bytes], tensors: Mapping[str, HostTensor], tokens_T: NDArray[np.int32], count: int
) -> list[float]:
    """Of the last `count` tokens, at temperature 1. Raises ConfigError, WeightsError."""
    facts = read_facts(files)
    config = derived_config(facts.config)
    model = TransformersModel(config, tensors, context_length=facts.context_length, dtype=torch.float32)
    logprobs_TV = torch.log_softmax(model.whole(tokens_T.tolist()).float(), -1)[-count - 1 : -1]
    found: list[float] = logprobs_TV.gather(1, torch.from_numpy(tokens_T[-count:]).long()[:, None])[:, 0].tolist()
    return found
