"""Difficulty pools: tasks that always succeed or always fail come up less often than the others."""

from typing import Any

from astraflow.dataflow.select.base import GroupResult, Prompt, share
from astraflow.dataflow.select.difficulty import SuccessRates
from astraflow.errors import ConfigError


class Pools:
    """Sorts tasks by their success rate and tries each pool with its own probability; the middle one always.

    Args:
        easy_above: a success rate of at least this is the easy pool.
        hard_below: a success rate of at most this is the hard pool.
        easy, hard: with which probability a task of that pool is tried.
        momentum: weight of a task's newest group in its success rate; 1 = only that one counts.
    """

    def __init__(
        self,
        *,
        easy_above: float = 1.0,
        hard_below: float = 0.0,
        easy: float = 0.1,
        hard: float = 0.2,
        momentum: float = 1.0,
    ) -> None:
        self.easy_above = share("easy_above", easy_above)
        self.hard_below = share("hard_below", hard_below)
        if not hard_below < easy_above:
            raise ConfigError(f"hard_below is {hard_below}, expected less than easy_above = {easy_above}")
        self.easy = share("easy", easy)
        self.hard = share("hard", hard)
        self.momentum = share("momentum", momentum, least=0.01)
        self._rates = SuccessRates()

    def take(self, prompt: Prompt) -> bool:
        rate = self._rates[prompt.index]
        if rate is not None and rate >= self.easy_above:
            return prompt.draw < self.easy
        if rate is not None and rate <= self.hard_below:
            return prompt.draw < self.hard
        return True

    def observe(self, result: GroupResult) -> None:
        self._rates.see(result.index, result.success, momentum=self.momentum)

    def state(self) -> Any:
        return self._rates.state()

    def restore(self, state: Any) -> None:
        self._rates.restore(state)
