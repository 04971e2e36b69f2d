"""GRESO: tasks whose last groups all had zero variance are likely to have it again, so they are skipped by chance.

Source: arXiv:2506.02177 §4, with what its authors' code adds (github.com/Infini-AI-Lab/GRESO). A task whose last z
groups were all solved is tried with probability p_easy^z, one whose last z groups all failed with p_hard^z, but at
least with `floor`. After every training iteration both p move by `step`, within 0.05..0.95: down where the share of
such groups among all that the iteration sampled reaches its target, else up. The target is split 1 : 2 between easy
and hard. In the first pass over the tasks nothing can be skipped yet: shares say nothing about p there, and it stays.

Where this differs: groups close one by one here, so an iteration is over with as many useful groups (with variance) as
a training batch holds. And every group without variance is easy or hard; the authors' code leaves out mean rewards
between 0.11 and 0.98.
"""

from typing import Any

from astraflow.dataflow.select.base import GroupResult, Prompt, count, share

_SOLVED = 0.5  # a group without variance did either well or badly
_LEAST_P, _MOST_P = 0.05, 0.95


class Greso:
    """Skips tasks by their streak of zero-variance groups.

    Args:
        target: share of zero-variance groups that is aimed at.
        easy_share: part of the target that easy tasks may fill.
        start: p_easy and p_hard at first.
        step: how far they move at a time.
        floor: the least probability with which any task is tried.
        window: useful groups between two moves; 0 = as many as a training batch holds.
        warm_up: groups before anything is skipped.
    """

    def __init__(
        self,
        *,
        target: float = 0.25,
        easy_share: float = 1 / 3,
        start: float = 0.5,
        step: float = 0.01,
        floor: float = 0.01,
        window: int = 0,
        warm_up: int = 0,
    ) -> None:
        self.target = share("target", target)
        self.easy_share = share("easy_share", easy_share)
        self.start = share("start", start)
        self.step = share("step", step)
        self.floor = share("floor", floor, least=1e-6)
        self.window = count("window", window, least=0)
        self.warm_up = count("warm_up", warm_up, least=0)
        self.p_easy = self.p_hard = self.start
        self._seen = 0
        self._in_window = [0, 0, 0]  # groups of this iteration, of which easy and hard ones without variance
        self._streaks: dict[int, tuple[int, bool]] = {}  # index → length, whether the last was easy

    def take(self, prompt: Prompt) -> bool:
        return self._seen < self.warm_up or prompt.draw < self.probability(prompt.index)

    def probability(self, index: int) -> float:
        """The chance with which the task is tried."""
        length, easy = self._streaks.get(index, (0, False))
        return max(self.floor, (self.p_easy if easy else self.p_hard) ** length)

    def observe(self, result: GroupResult) -> None:
        self._seen += 1
        self._in_window[0] += 1
        if result.mixed:
            self._streaks.pop(result.index, None)
        else:
            easy = result.success >= _SOLVED
            length, was_easy = self._streaks.get(result.index, (0, easy))
            self._streaks[result.index] = (length + 1 if easy is was_easy else 1, easy)
            self._in_window[1 if easy else 2] += 1
        groups, dull = self._in_window[0], sum(self._in_window[1:])
        if groups - dull >= (self.window or result.batch_groups):
            if result.epoch > 0:
                self._adapt()
            self._in_window = [0, 0, 0]

    def _adapt(self) -> None:
        groups, easy, hard = self._in_window
        for_easy = self.target * self.easy_share
        self.p_easy = self._moved(self.p_easy, down=easy / groups >= for_easy)
        self.p_hard = self._moved(self.p_hard, down=hard / groups >= self.target - for_easy)

    def _moved(self, p: float, *, down: bool) -> float:
        return min(_MOST_P, max(_LEAST_P, p - self.step if down else p + self.step))

    def metrics(self) -> dict[str, float]:
        return {"p_easy": self.p_easy, "p_hard": self.p_hard}

    def state(self) -> Any:
        streaks = [(index, *streak) for index, streak in self._streaks.items()]
        return [self.p_easy, self.p_hard, self._seen, list(self._in_window), streaks]

    def restore(self, state: Any) -> None:
        self.p_easy, self.p_hard, self._seen, in_window, streaks = state
        self._in_window = list(in_window)
        self._streaks = {index: (length, easy) for index, length, easy in streaks}
