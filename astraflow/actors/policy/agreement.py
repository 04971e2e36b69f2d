"""The start-up probe: a replica plays nothing before its engine agrees with the learner on what the weights mean.

A model that one side reads differently trains on something wrong without a word: the numbers look like numbers. So the
trainer publishes, with every version, what its learner makes of a fixed row of tokens, and a replica compares after it
has loaded its first one. If they differ, transformers is asked in fp32, so that it can be said which side is wrong.
It looks once, at the first version: later ones are checked by digests. Engines that can't score are trusted.
"""

import asyncio
import importlib.util
import logging
from collections.abc import Mapping

import numpy as np

from astraflow.actors.base.context import ActorContext
from astraflow.engines.base import PolicyEngine, Scored, Scoring
from astraflow.errors import ConfigError, EngineError, WeightsError
from astraflow.messages import Head, Probe
from astraflow.models.probe import Gap, gap
from astraflow.weights.codec.tensors import HostTensor

_log = logging.getLogger(__name__)


async def check_agreement(
    ctx: ActorContext,
    engine: PolicyEngine,
    head: Head,
    probe: Probe | None,
    files: Mapping[str, bytes],
    tensors: Mapping[str, HostTensor],
) -> None:
    """Raises ConfigError, which ends the run, if the engine's logprobs are not the learner's."""
    if probe is None or not isinstance(engine, Scoring):
        return
    row_T, count = np.array(probe.tokens, np.int32), len(probe.logprobs)
    found = await engine.score(row_T, count)
    between = gap(found.logprobs.tolist(), probe.logprobs, found.dtype, probe.dtype)
    values = {"mean": between.mean, "most": between.most, "dtypes": f"{found.dtype}/{probe.dtype}"}
    _log.info("probe", extra={"policy": head.policy, "version": head.version, "agrees": between.agrees, **values})
    if between.agrees:
        return
    judged = "transformers isn't installed here to say which side is wrong"
    if importlib.util.find_spec("transformers") is not None:
        judged = await asyncio.to_thread(_judged, files, tensors, probe, found)
    text = (
        f"engine and learner disagree on version {head.version} of {head.policy}: logprobs of the same {count} tokens "
        f"are {between} apart, the bound is {between.bound}; {judged}"
    )
    await ctx.bus.event("error", "probe-failed", text, version=head.version)
    raise ConfigError(text)


def _judged(files: Mapping[str, bytes], tensors: Mapping[str, HostTensor], probe: Probe, found: Scored) -> str:
    """Which side differs from transformers, for people. Blocking."""
    from astraflow.engines.reference import transformers_logprobs

    try:
        row_T = np.array(probe.tokens, np.int32)
        right = transformers_logprobs(files, tensors, row_T, len(probe.logprobs))
    except (ConfigError, EngineError, WeightsError) as exc:
        return f"transformers can't be asked which side is wrong: {exc}"
    sides = {
        "engine": gap(found.logprobs.tolist(), right, found.dtype),
        "learner": gap(probe.logprobs, right, probe.dtype),
    }
    return f"{_blamed(sides)} from transformers ({', '.join(f'{name} by {apart}' for name, apart in sides.items())})"


def _blamed(sides: Mapping[str, Gap]) -> str:
    """Whoever is out of bounds; where neither is by itself, the one further away."""
    wrong = [name for name, apart in sides.items() if not apart.agrees]
    if not wrong:
        wrong = [max(sides, key=lambda name: sides[name].mean)]
    return "both differ" if len(wrong) > 1 else f"the {wrong[0]} differs"
