"""How a policy samples, and which of it can be trained. Pure.

In training a policy samples as its table says, in an evaluation as that one says, and a call may have settings of its
own. Engines report a token's logprob under the temperature-scaled distribution, before top-k and top-p cut it, and of
a greedy token under the unscaled one. So a learner that knows the temperature can compute the same number; what top-k,
top-p or greedy sampling really chose from is not what that number describes, and is not trained.
"""

import math

import msgspec

from astraflow.config import RunConfig, SamplingSection
from astraflow.messages import Sampling

LOWEST_TRAINED_TEMPERATURE = 0.05
"""Below, rounding decides: what differs between the logits of engine and learner is divided by the temperature."""


def sampling_for(config: RunConfig, policy: str, eval_set: str = "") -> SamplingSection:
    """The policy's own sampling, with what the evaluation changes in it. An evaluation that is gone changes nothing."""
    own, section = config.policies[policy].sampling, config.eval.get(eval_set)
    if section is None:
        return own
    return msgspec.structs.replace(
        own,
        temperature=section.temperature,
        top_p=section.top_p or own.top_p,
        max_new_tokens=section.max_new_tokens or own.max_new_tokens,
    )


def fault_of_sampling(sampling: Sampling) -> str:
    """Why nobody can sample so; "" if one can. In the words of every engine."""
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        return f"temperature is {sampling.temperature}, expected 0 or more"
    if not 0 < sampling.top_p <= 1:
        return f"top_p is {sampling.top_p}, expected more than 0 and at most 1"
    if sampling.top_k < 0:
        return f"top_k is {sampling.top_k}, expected 0 (off) or more"
    if sampling.max_new_tokens < 1:
        return f"max_new_tokens asks for {sampling.max_new_tokens} new tokens, expected at least 1"
    return ""


def why_untrainable(sampling: Sampling | SamplingSection) -> str:
    """Why what is sampled so can't be trained, as the end of a sentence that begins with the key; "" if it can."""
    if sampling.top_k:
        return f"top_k = {sampling.top_k} cuts the distribution, which the engine's logprobs don't show; use 0"
    if sampling.top_p < 1:
        return f"top_p = {sampling.top_p:g} cuts the distribution, which the engine's logprobs don't show; use 1"
    if sampling.temperature == 0:
        return "temperature = 0 is greedy: there is no distribution to train; use more than 0"
    if sampling.temperature < LOWEST_TRAINED_TEMPERATURE:
        return (
            f"temperature = {sampling.temperature:g} magnifies the rounding of logits beyond use; use at least "
            f"{LOWEST_TRAINED_TEMPERATURE:g}"
        )
    return ""
