"""An environment with levels is climbed: up when the policy does well on the newest one, down when it fails there.

Which level a task is of stands in its index (`ids.LEVEL_STRIDE`), so the environment needs no state.
"""

from typing import Any

from astraflow.dataflow.select.base import GroupResult, Prompt, count, share
from astraflow.errors import ConfigError
from astraflow.messages.ids import level_of


class Levels:
    """Draws from the newest level, and now and then from those below it.

    Args:
        levels: how many the environment has.
        first: the level to begin with, from 0 on.
        up: mean success over a window from which on the next level is opened.
        down: mean success over a window at which the newest level is closed again.
        window: groups of the newest level that decide.
        review: share of the tasks that is drawn from the lower levels, evenly.
    """

    def __init__(
        self, *, levels: int, first: int = 0, up: float = 0.8, down: float = 0.1, window: int = 32, review: float = 0.2
    ) -> None:
        self.levels = count("levels", levels)
        self.first = count("first", first, least=0)
        self.up, self.down = share("up", up), share("down", down)
        if not down < up:
            raise ConfigError(f"down is {down}, expected less than up = {up}")
        if not first < levels:
            raise ConfigError(f"first is {first}, expected less than levels = {levels}")
        self.window = count("window", window)
        self.review = share("review", review)
        self.newest = first
        self._groups, self._success = 0, 0.0

    def level(self, draw: float) -> int:
        """The level of the next task."""
        if self.newest and draw < self.review:
            return int(draw / self.review * self.newest)
        return self.newest

    def take(self, prompt: Prompt) -> bool:
        return True

    def observe(self, result: GroupResult) -> None:
        if level_of(result.index) != self.newest:
            return
        self._groups += 1
        self._success += result.success
        if self._groups < self.window:
            return
        mean = self._success / self._groups
        self._groups, self._success = 0, 0.0
        if mean >= self.up:
            self.newest = min(self.levels - 1, self.newest + 1)
        elif mean <= self.down:
            self.newest = max(0, self.newest - 1)

    def metrics(self) -> dict[str, float]:
        return {"newest": float(self.newest)}

    def state(self) -> Any:
        return [self.newest, self._groups, self._success]

    def restore(self, state: Any) -> None:
        newest, self._groups, self._success = state
        self.newest = min(newest, self.levels - 1)
