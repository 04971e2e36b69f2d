"""Tasks that the policy solves every time are left out for good."""

from typing import Any

from astraflow.dataflow.select.base import GroupResult, Prompt, count, share
from astraflow.messages.ids import RangeSet


class FilterSolved:
    """Skips a task once its last `times` groups each had a success of at least `solved`.

    Args:
        solved: share of success of a group.
        times: groups in a row.
    """

    def __init__(self, *, solved: float = 1.0, times: int = 1) -> None:
        self.solved = share("solved", solved)
        self.times = count("times", times)
        self._done = RangeSet()
        self._streaks: dict[int, int] = {}  # index → groups in a row; only what isn't done yet

    def take(self, prompt: Prompt) -> bool:
        return prompt.index not in self._done

    def observe(self, result: GroupResult) -> None:
        streak = self._streaks.pop(result.index, 0) + 1
        if result.success < self.solved:
            return
        if streak >= self.times:
            self._done.add(result.index)
        else:
            self._streaks[result.index] = streak

    def state(self) -> Any:
        return [self._done.ranges(), list(self._streaks.items())]

    def restore(self, state: Any) -> None:
        done, streaks = state
        self._done, self._streaks = RangeSet(done), dict(streaks)
