"""Sums over one policy's training episodes since its previous batch, for metrics.

Not in snapshots: after a restart the first batch's numbers cover what this process saw. Names are those of the table
in messages/metric_names.py.
"""

import math
from dataclasses import dataclass, field

from astraflow.dataflow.part_sums import PartSums
from astraflow.dataflow.samples import JudgedMember
from astraflow.messages import Episode, SampleBatch
from astraflow.messages.metric_names import (
    DATAFLOW_CORRECT_ALL,
    DATAFLOW_FAILED_ALL,
    DATAFLOW_PART,
    DATAFLOW_PASS_FRACTION,
    DATAFLOW_REPLAYED_GROUPS,
    DATAFLOW_REWARD_ALL,
    DATAFLOW_REWARD_EFFECTIVE,
    DATAFLOW_SKIPPED_TASKS,
)


@dataclass
class SinceLastBatch:
    """What happened since the previous batch."""

    rewards: list[float] = field(default_factory=list)
    corrects: list[float] = field(default_factory=list)
    groups: int = 0
    passed: int = 0
    skipped: int = 0
    failed: int = 0  # episodes without a valid reward
    parts: PartSums = field(default_factory=PartSums)

    def see_episode(self, episode: Episode, judged: JudgedMember) -> None:
        """An episode of a group that closed; without a valid reward it counts in no mean."""
        self.failed += judged.fate is not None
        if judged.fate is None:
            self.rewards.append(judged.reward)
            self.parts.add(judged.parts)
            if episode.correct is not None and math.isfinite(episode.correct):
                self.corrects.append(episode.correct)

    def group_closed(self, *, passed: bool) -> None:
        """A group was filtered or passed."""
        self.groups += 1
        self.passed += passed

    def values(self, batch: SampleBatch, *, replayed: int) -> dict[str, float]:
        """Metric values for the batch that it ends with; what has no data is left out.

        Args:
            replayed: groups in it that were trained before.
        """
        effective = list({sample.task_id: sample.reward for sample in batch.samples}.values())
        values = {
            DATAFLOW_SKIPPED_TASKS: float(self.skipped),
            DATAFLOW_REPLAYED_GROUPS: float(replayed),
            DATAFLOW_FAILED_ALL: float(self.failed),
        } | self.parts.means(DATAFLOW_PART)
        for name, numbers in (
            (DATAFLOW_REWARD_ALL, self.rewards),
            (DATAFLOW_REWARD_EFFECTIVE, effective),
            (DATAFLOW_CORRECT_ALL, self.corrects),
        ):
            if numbers:
                values[name] = sum(numbers) / len(numbers)
        if self.groups:
            values[DATAFLOW_PASS_FRACTION] = self.passed / self.groups
        return values
