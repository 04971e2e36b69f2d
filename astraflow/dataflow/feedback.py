"""What closed groups taught, on its way to the selectors of their sources.

Groups close in any order. In deterministic mode selectors must not see that: results wait here until every group that
was issued before has closed too, and no cohort is half issued. Invariant: a result is delivered once.
"""

import math
from collections.abc import Iterable, Mapping

import msgspec

from astraflow.dataflow.select import GroupResult
from astraflow.dataflow.sources import Source
from astraflow.messages import Episode
from astraflow.messages.ids import GroupKey


class PendingResult(msgspec.Struct):
    """A result that waits. In snapshots; append fields only."""

    ordinal: int  # of its group, in order of issue
    source: str
    index: int
    epoch: int
    rewards: dict[str, tuple[float, ...]]
    correct: float | None = None


def mean_correct(episodes: Iterable[Episode]) -> float | None:
    """Over those with a notion of it; None if there is none."""
    values = [episode.correct for episode in episodes if episode.correct is not None and math.isfinite(episode.correct)]
    return sum(values) / len(values) if values else None


class Feedback:
    """Results of closed groups that wait for the selectors of their sources."""

    def __init__(
        self,
        sources: Mapping[str, Source],
        *,
        batch_groups: Mapping[str, int],
        ordered: bool,
        pending: Iterable[PendingResult] = (),
    ) -> None:
        """`batch_groups`: per source, of its policies' smallest batch. `ordered`: for deterministic mode."""
        self._sources = sources
        self._batch_groups = batch_groups
        self._ordered = ordered
        self.pending = list(pending)

    def group_closed(
        self, key: GroupKey, ordinal: int, rewards: Mapping[str, tuple[float, ...]], correct: float | None
    ) -> None:
        """A training group closed. One without a valid reward teaches nothing."""
        if any(rewards.values()):
            self.pending.append(PendingResult(ordinal, key.source, key.index, key.epoch, dict(rewards), correct))

    def deliver(self, *, open_from: float, cohort_from: float) -> None:
        """Tell the selectors.

        Args:
            open_from: issue order of the oldest group that is still open.
            cohort_from: issue order of the first group of a cohort that is half issued.
        """
        limit = min(open_from, cohort_from) if self._ordered else math.inf
        due = sorted((result for result in self.pending if result.ordinal < limit), key=lambda result: result.ordinal)
        self.pending = [result for result in self.pending if result.ordinal >= limit]
        for result in due:
            if source := self._sources.get(result.source):
                source.observe(
                    GroupResult(
                        index=result.index,
                        epoch=result.epoch,
                        rewards=result.rewards,
                        correct=result.correct,
                        batch_groups=self._batch_groups[result.source],
                    )
                )
