"""A run that gets nowhere: what is wrong is told when it shows and whenever it has doubled, and the run is ended if
nothing works. Pure: it publishes nothing.

A replica that is missing does not count: its requests wait. What counts are environments, graders and engines that
answer with failures, which would otherwise spin for ever.
"""

from collections.abc import Mapping, Sequence

from astraflow.dataflow.ledger import Fate
from astraflow.dataflow.problems import Problem
from astraflow.errors import TrainingError


class FailureStreak:
    """Counts groups that failed as a whole since the last one that did not."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._groups = 0

    def see_group(self, fates: Mapping[str, Fate], last: str) -> None:
        """A group has closed (no fates: none has). `last`: what closed it. Raises TrainingError if the streak is long.

        A group whose members all got lost, or could not be made, counts like one that failed.
        """
        if not fates:
            return
        if all(fate is Fate.SMALL_GROUP for fate in fates.values()):
            self._groups += 1
        else:
            self._groups = 0
        if self._groups >= self._most:
            raise TrainingError(
                f"{self._groups} groups in a row ended without enough valid rewards; the last {last}. Mend it and "
                "start again, or raise dataflow.max_failed_groups"
            )


class ToldProblems:
    """Which problems people have been told of."""

    def __init__(self) -> None:
        self._times: dict[tuple[str, str], int] = {}  # by kind and subject, as of the last telling

    def due(self, problems: Sequence[Problem]) -> list[Problem]:
        """Those to tell now. One that has gone is told again when it comes back."""
        due = [
            problem for problem in problems if problem.times >= 2 * self._times.get((problem.kind, problem.subject), 0)
        ]
        told = {(problem.kind, problem.subject): problem.times for problem in due}
        known = {(problem.kind, problem.subject) for problem in problems}
        self._times = {key: times for key, times in (self._times | told).items() if key in known}
        return due
