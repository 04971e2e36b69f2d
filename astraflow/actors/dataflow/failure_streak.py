"""Stop a run in which nothing works: groups that end one after the other without a valid reward. Pure.

A replica that is missing does not count: its requests wait. What counts are environments, graders and engines that
answer with failures, which would otherwise spin for ever.
"""

from astraflow.algos.dataflow_core import EpisodeVerdict
from astraflow.algos.ledger import SMALL_GROUP
from astraflow.errors import TrainingError
from astraflow.messages import Episode


class FailureStreak:
    """Counts groups that failed as a whole since the last one that did not."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._groups = 0

    def take(self, episode: Episode, verdict: EpisodeVerdict) -> None:
        """Look at what an episode did to its group. Raises TrainingError when the streak is too long."""
        if not verdict.fates:
            return
        if all(fate == SMALL_GROUP for fate in verdict.fates.values()):
            self._groups += 1
        else:
            self._groups = 0
        if self._groups >= self._most:
            raise TrainingError(
                f"{self._groups} groups in a row ended without enough valid rewards; the last episode of env "
                f"{episode.env}: {episode.reason}: {episode.error or 'no detail'}. Mend it and start again, or raise "
                "dataflow.max_failed_groups"
            )
