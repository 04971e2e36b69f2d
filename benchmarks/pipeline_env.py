"""The pipeline benchmark's environment: one turn of a fixed length and nothing to compute."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from astraflow.envs.base import Outcome, PolicyHandle
from astraflow.messages import Sampling, Task


class FixedLengthEnv:
    """Every episode is one trajectory of `prompt_tokens` + `completion_tokens` tokens, whatever the policy says."""

    def __init__(self, *, prompt_tokens: int, completion_tokens: int) -> None:
        self.size: int | None = None
        self._prompt_T = np.arange(prompt_tokens, dtype=np.int32) % 62 + 1
        self._sampling = Sampling(max_new_tokens=completion_tokens, ignore_eos=True)

    def task(self, index: int) -> dict[str, Any]:
        """{"index"}."""
        return {"index": index}

    async def run(self, task: Task, policies: Mapping[str, PolicyHandle]) -> Outcome:
        """One completion per policy; the members of a group get different rewards."""
        for policy in policies.values():
            await policy.generate(self._prompt_T, sampling=self._sampling)
        return Outcome(rewards=dict.fromkeys(policies, task.member / task.group_size))

    async def close(self) -> None:
        """Nothing to free."""
