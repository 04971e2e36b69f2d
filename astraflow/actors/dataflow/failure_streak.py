"""Stop a run in which nothing works: groups that end one after the other without a valid reward. Pure.

A replica that is missing does not count: its requests wait. What counts are environments, graders and engines that
answer with failures, which would otherwise spin for ever.
"""

from collections.abc import Mapping

from astraflow.dataflow.ledger import Fate
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
