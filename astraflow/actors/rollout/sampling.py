"""How a policy samples: in training as its table says, in an evaluation as that one says. Pure."""

import msgspec

from astraflow.config import RunConfig, SamplingSection


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
