"""What a selector sees and answers.

A source walks through its tasks in order; the selector says of each whether it is tried or skipped this time. It looks
when asked (`take`) and learns only from closed groups (`observe`). Invariant: between two observations the same prompt
gives the same answer, however often it is asked for.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from astraflow.errors import ConfigError

SELECTS = {
    "accept-all": "astraflow.dataflow.select.accept_all:AcceptAll",
    "curriculum": "astraflow.dataflow.select.curriculum:Curriculum",
    "filter-solved": "astraflow.dataflow.select.filter_solved:FilterSolved",
    "greso": "astraflow.dataflow.select.greso:Greso",
    "levels": "astraflow.dataflow.select.levels:Levels",
    "pools": "astraflow.dataflow.select.pools:Pools",
}
# Rewards may differ by rounding; see filters/zero_advantage.py.
_SAME_REWARD = 1e-6


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A task whose turn it is."""

    index: int  # the environment's
    epoch: int
    draw: float  # uniform in (0, 1), fixed by the run's seed, the source, epoch and index


@dataclass(frozen=True, kw_only=True)
class GroupResult:
    """What came of a group, for all policies that it feeds. It has at least one valid reward."""

    index: int
    epoch: int
    rewards: Mapping[str, tuple[float, ...]]  # per policy, its valid members'
    correct: float | None = None  # mean over members; None: the environment has no notion of it
    batch_groups: int = 8  # of those policies' training batches, the smallest

    @property
    def mixed(self) -> bool:
        """Some policy's members did differently well, so that there is something to learn."""
        return any(max(rewards) - min(rewards) > _SAME_REWARD for rewards in self.rewards.values() if rewards)

    @property
    def success(self) -> float:
        """Share of success, 0..1: how often it was correct, else the mean reward clipped to 0..1."""
        if self.correct is not None:
            return self.correct
        rewards = [reward for of_policy in self.rewards.values() for reward in of_policy]
        return min(1.0, max(0.0, sum(rewards) / len(rewards)))


class Select(Protocol):
    """A stage (see stages.py) that chooses among a source's tasks.

    One with `level(draw) -> int` also says which level of the environment the next task is of, from 0 on. What one with
    `metrics() -> numbers by name` tells is in metrics.jsonl with every batch.
    """

    def take(self, prompt: Prompt) -> bool:
        """Whether the task is tried now. Changes nothing."""
        ...

    def observe(self, result: GroupResult) -> None:
        """A group of this source has closed."""
        ...


def share(name: str, value: float, *, least: float = 0.0) -> float:
    """`value` if it is in [least, 1]. Raises ConfigError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= 1:
        raise ConfigError(f"{name} is {value!r}, expected a number from {least:g} to 1")
    return float(value)


def count(name: str, value: int, *, least: int = 1) -> int:
    """`value` if it is an integer of at least `least`. Raises ConfigError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} is {value!r}, expected an integer of at least {least}")
    return value
