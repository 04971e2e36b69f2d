"""How a policy samples, and which of it can be trained. Pure.

In training a policy samples as its table says, in an evaluation as that one says, and a call may have settings of its
own. Engines report a token's logprob under the temperature-scaled distribution, before top-k and top-p cut it, and of
a greedy token under the unscaled one. So a learner that knows the temperature can compute the same number; what top-k,
top-p, penalties or greedy sampling really chose from is not what that number describes, and is not trained.
"""

import math

import msgspec

from astraflow.config import RunConfig, SamplingSection
from astraflow.messages import Sampling

LOWEST_TRAINED_TEMPERATURE = 0.05
"""Below, rounding decides: what differs between the logits of engine and learner is divided by the temperature."""

MOST_STOPS, LONGEST_STOP = 16, 256
"""Stop strings of a call, and letters of each: they are looked for at every token."""


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
    if sampling.min_tokens < 0:
        return f"min_tokens is {sampling.min_tokens}, expected 0 (off) or more"
    if sampling.seed is not None and not 0 <= sampling.seed < 1 << 63:
        return f"seed is {sampling.seed}, expected 0 to 2**63 - 1"
    for name, value in (("presence", sampling.presence_penalty), ("frequency", sampling.frequency_penalty)):
        if not -2 <= value <= 2:
            return f"{name}_penalty is {value}, expected -2 to 2"
    return _fault_of_stop(sampling.stop)


def _fault_of_stop(stop: object) -> str:
    """Users' scripts make it."""
    if not isinstance(stop, tuple | list) or not all(isinstance(text, str) for text in stop):
        return f"stop is {stop!r:.80}, expected a tuple of strings"
    if not all(stop):
        return "stop has an empty string, at which everything would end; leave it out"
    if len(stop) > MOST_STOPS or any(len(text) > LONGEST_STOP for text in stop):
        longest = max(map(len, stop))
        return (
            f"stop has {len(stop)} strings of up to {longest} letters, expected {MOST_STOPS} of {LONGEST_STOP} at most"
        )
    return ""


def why_untrainable(sampling: Sampling | SamplingSection) -> str:
    """Why what is sampled so can't be trained, as the end of a sentence that begins with the key; "" if it can."""
    if sampling.top_k:
        return f"top_k = {sampling.top_k} cuts the distribution, which the engine's logprobs don't show; use 0"
    if sampling.top_p < 1:
        return f"top_p = {sampling.top_p:g} cuts the distribution, which the engine's logprobs don't show; use 1"
    if isinstance(sampling, Sampling) and (changed := _changes_logits(sampling)):
        return f"{changed} changes the distribution, which the engine's logprobs don't show; leave it out"
    if sampling.temperature == 0:
        return "temperature = 0 is greedy: there is no distribution to train; use more than 0"
    if sampling.temperature < LOWEST_TRAINED_TEMPERATURE:
        return (
            f"temperature = {sampling.temperature:g} magnifies the rounding of logits beyond use; use at least "
            f"{LOWEST_TRAINED_TEMPERATURE:g}"
        )
    return ""


def _changes_logits(sampling: Sampling) -> str:
    """The first setting by which tokens are drawn from other than the model's own distribution; "" = none."""
    if sampling.min_tokens:
        return f"min_tokens = {sampling.min_tokens}"
    if sampling.presence_penalty:
        return f"presence_penalty = {sampling.presence_penalty:g}"
    return f"frequency_penalty = {sampling.frequency_penalty:g}" if sampling.frequency_penalty else ""
