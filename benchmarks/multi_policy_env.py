"""The multi-policy benchmark's environment: a long-tailed turn of the solver, then a short one of the verifier."""

from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

import numpy as np

from astraflow.envs.base import Outcome, PolicyHandle
from astraflow.messages import Sampling, Task

PROMPT_T = np.arange(16, dtype=np.int32) + 1


def lengths(block: int, *, episodes: int, mean: float, sigma: float, seed: int) -> list[int]:
    """Tokens of the long turns of one batch: log-normal quantiles in random order, so each batch is as much work."""
    at = [(place + 0.5) / episodes for place in np.random.default_rng([seed, block]).permutation(episodes)]
    drawn = np.exp(sigma * np.array([NormalDist().inv_cdf(float(each)) for each in at]))
    return [max(1, round(each)) for each in drawn * (mean / drawn.mean())]


class LongTailEnv:
    """Lengths in tokens; the engine decides how long a token takes.

    Args:
        episodes: in a batch.
        mean: tokens of the solver's turn.
        sigma: of the logarithm of its length.
        seed: of the order of lengths.
    """

    def __init__(self, *, episodes: int, mean: float, sigma: float, seed: int) -> None:
        self.size: int | None = None
        self._episodes, self._mean, self._sigma, self._seed = episodes, mean, sigma, seed

    def task(self, index: int) -> dict[str, Any]:
        """{"index"}."""
        return {"index": index}

    async def run(self, task: Task, policies: Mapping[str, PolicyHandle]) -> Outcome:
        """Both policies are rewarded, and the members of a group differ."""
        block, place = divmod(task.payload["index"] * task.group_size + task.member, self._episodes)
        tokens = lengths(block, episodes=self._episodes, mean=self._mean, sigma=self._sigma, seed=self._seed)[place]
        for name, count in (("solver", tokens), ("verifier", 1)):
            await policies[name].generate(PROMPT_T, sampling=Sampling(max_new_tokens=count, ignore_eos=True))
        return Outcome(rewards=dict.fromkeys(policies, task.member / task.group_size))

    async def close(self) -> None:
        """Nothing to free."""
