"""Tasks of the right difficulty first: those that succeed about as often as `target`.

The variance of a task's reward, and with it what a group can teach, is largest at a success rate of one half
(arXiv:2504.03380 §3). Turn `target` down during the run to go from easy to hard.
"""

from typing import Any

from astraflow.dataflow.select.base import GroupResult, Prompt, share
from astraflow.dataflow.select.difficulty import SuccessRates


class Curriculum:
    """Tries a task with probability 1 − |success − target| / width, at least `floor`; one that it doesn't know, always.

    Args:
        target: success rate that is best.
        width: distance from the target at which only the floor is left.
        floor: the least probability.
        momentum: weight of a task's newest group in its success rate.
    """

    def __init__(self, *, target: float = 0.5, width: float = 0.5, floor: float = 0.05, momentum: float = 0.5) -> None:
        self.target = share("target", target)
        self.width = share("width", width, least=0.01)
        self.floor = share("floor", floor, least=1e-6)
        self.momentum = share("momentum", momentum, least=0.01)
        self._rates = SuccessRates()

    def take(self, prompt: Prompt) -> bool:
        rate = self._rates[prompt.index]
        return rate is None or prompt.draw < max(self.floor, 1 - abs(rate - self.target) / self.width)

    def observe(self, result: GroupResult) -> None:
        self._rates.see(result.index, result.success, momentum=self.momentum)

    def state(self) -> Any:
        return self._rates.state()

    def restore(self, state: Any) -> None:
        self._rates.restore(state)
