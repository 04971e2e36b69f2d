"""GRESO: tasks whose last groups all had zero variance are likely to have it again, so they are skipped by chance.

Source: arXiv:2506.02177 §4. A task with z zero-variance groups in a row is tried with probability p^z; p is p_easy if
its last group succeeded and p_hard if it failed. Every `window` groups both move by `step`: down where more of the
groups had zero variance than the target allows, else up. The target is split 1 : 2 between easy and hard, as there.

Where this differs: the paper adapts once per training iteration, this every `window` closed groups, because groups
close one by one here; and it has a floor, so that no task is lost for ever when p gets small.
"""

from typing import Any

from astraflow.algos.select.base import GroupResult, Prompt
from astraflow.algos.select.checks import count, share

SOLVED = 0.5  # a group without variance did either well or badly


class Greso:
    """Skips tasks by their streak of zero-variance groups.

    Args:
        target: share of zero-variance groups that is aimed at.
        easy_share: part of the target that easy tasks may fill.
        start: p_easy and p_hard at first.
        step: how far they move at a time.
        floor: the least probability with which any task is tried.
        window: groups between two moves.
        warm_up: groups before anything is skipped.
    """

    def __init__(
        self, *, target: float = 0.25, easy_share: float = 1 / 3, start: float = 0.5, step: float = 0.01,
        floor: float = 0.01, window: int = 64, warm_up: int = 0,
    ) -> None:  # fmt: skip
        self.target = share("target", target)
        self.easy_share = share("easy_share", easy_share)
        self.start = share("start", start)
        self.step = share("step", step)
        self.floor = share("floor", floor, least=1e-6)
        self.window = count("window", window)
        self.warm_up = count("warm_up", warm_up, least=0)
        self.p_easy = self.p_hard = self.start
        self._seen = 0
        self._in_window = [0, 0, 0]  # groups, of which easy and hard ones without variance
        self._streaks: dict[int, tuple[int, bool]] = {}  # index → length, whether the last was easy

    def take(self, prompt: Prompt) -> bool:
        return self._seen < self.warm_up or prompt.draw < self.probability(prompt.index)

    def probability(self, index: int) -> float:
        """With which the task is tried."""
        length, easy = self._streaks.get(index, (0, False))
        return max(self.floor, (self.p_easy if easy else self.p_hard) ** length)

    def observe(self, result: GroupResult) -> None:
        self._seen += 1
        self._in_window[0] += 1
        if result.mixed:
            self._streaks.pop(result.index, None)
        else:
            easy = result.success >= SOLVED
            self._streaks[result.index] = (self._streaks.get(result.index, (0, easy))[0] + 1, easy)
            self._in_window[1 if easy else 2] += 1
        if self._in_window[0] >= self.window:
            self._adapt()

    def _adapt(self) -> None:
        groups, easy, hard = self._in_window
        for_easy = self.target * self.easy_share
        self.p_easy = self._moved(self.p_easy, down=easy / groups >= for_easy)
        self.p_hard = self._moved(self.p_hard, down=hard / groups >= self.target - for_easy)
        self._in_window = [0, 0, 0]

    def _moved(self, p: float, *, down: bool) -> float:
        return min(1.0, max(self.floor, p - self.step if down else p + self.step))

    def state(self) -> Any:
        streaks = [(index, *streak) for index, streak in self._streaks.items()]
        return [self.p_easy, self.p_hard, self._seen, list(self._in_window), streaks]

    def restore(self, state: Any) -> None:
        self.p_easy, self.p_hard, self._seen, in_window, streaks = state
        self._in_window = list(in_window)
        self._streaks = {index: (length, easy) for index, length, easy in streaks}
