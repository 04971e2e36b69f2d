"""An environment for tests of everything around it: no model, no data, no grading.

The reward is a pure function of (task index, member, seed), so a chaos test knows what every episode must have earned,
however often it was replayed. It looks at no reply.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from astraflow.envs.base import Outcome, PolicyHandle
from astraflow.errors import ConfigError, EnvError
from astraflow.holdout import question_share
from astraflow.messages import Task


class ToyEnv:
    """A conversation of a few turns with every policy, then a reward that was fixed beforehand.

    It speaks in tokens: each turn's prompt is the last one with its completion and a few tokens more, so an episode is
    one trajectory per policy.

    Args:
        size: number of tasks; 0 = unlimited.
        turns: turns per policy, in order of the policies' names.
        flat_share: share of the task indices whose members all get the same reward (a group without signal).
        fail_every: every task index that this divides, 0 included, raises EnvError; 0 = none.
        seed: of the rewards.
        policies: the policies to talk to; empty = all of the run.

    Raises:
        ConfigError: a number out of range.
    """

    def __init__(
        self,
        *,
        size: int = 0,
        turns: int = 1,
        flat_share: float = 0.0,
        fail_every: int = 0,
        seed: int = 0,
        policies: tuple[str, ...] | list[str] = (),
    ) -> None:
        if size < 0 or turns < 1 or fail_every < 0 or not 0 <= flat_share <= 1:
            raise ConfigError(
                f"toy environment got size={size}, turns={turns}, fail_every={fail_every}, flat_share={flat_share}; "
                "expected size >= 0, turns >= 1, fail_every >= 0 and flat_share in 0..1"
            )
        self.size: int | None = size or None
        self._turns = turns
        self._flat_share = flat_share
        self._fail_every = fail_every
        self._seed = seed
        self._policies = tuple(policies)

    def task(self, index: int) -> dict[str, Any]:
        """{"index"}. Raises EnvError beyond `size`."""
        if index < 0 or (self.size is not None and index >= self.size):
            raise EnvError(f"task index is {index}, the toy environment has {self.size} tasks")
        return {"index": index}

    def reward(self, index: int, member: int) -> float:
        """The reward of that member's episode, in 0, 0.25, 0.5, 0.75, 1."""
        flat = question_share(f"flat {self._seed} {index}") < self._flat_share
        return int(question_share(f"reward {self._seed} {index} {0 if flat else member}") * 5) / 4

    async def run(self, task: Task, policies: Mapping[str, PolicyHandle]) -> Outcome:
        """Talk `turns` times to each policy. Raises EnvError where `fail_every` says so, after the first reply."""
        index = task.payload["index"]
        names = self._policies or tuple(sorted(policies))
        for name in names:
            tokens = _tokens(f"toy {index}")
            for turn in range(self._turns):
                reply = await policies[name].generate(tokens, sampling=task.sampling)
                if self._fail_every and index % self._fail_every == 0:
                    raise EnvError(f"toy environment fails at index {index}, as told by fail_every={self._fail_every}")
                tokens = np.concatenate([tokens, reply.tokens, _tokens(f"turn {turn + 1}")])
        reward = self.reward(index, task.member)
        return Outcome(rewards=dict.fromkeys(names, reward), correct=float(reward == 1), prompt=f"toy {index}")

    async def close(self) -> None:
        """Nothing to free."""


def _tokens(text: str) -> NDArray[np.int32]:
    """Ids 1..63, valid for every model and never the toy model's end token."""
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32) % 63 + 1
