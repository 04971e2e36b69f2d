"""Sums over one policy's training episodes since its previous batch, for metrics.

Not in snapshots: after a restart the first batch's numbers cover what this process saw. Names are those of the table
in actors/base/metrics.py.
"""

import math
from dataclasses import dataclass, field

from astraflow.algos.parts import Parts
from astraflow.algos.samples import Judged
from astraflow.messages import Episode, SampleBatch


@dataclass
class Window:
    """What happened since the previous batch."""

    rewards: list[float] = field(default_factory=list)
    corrects: list[float] = field(default_factory=list)
    groups: int = 0
    passed: int = 0
    skipped: int = 0
    failed: int = 0  # episodes without a valid reward
    parts: Parts = field(default_factory=Parts)

    def see(self, episode: Episode, judged: Judged) -> None:
        """An episode of a group that closed; without a valid reward it counts in no mean."""
        self.failed += bool(judged.fate)
        if not judged.fate:
            self.rewards.append(judged.reward)
            self.parts.add(judged.parts)
            if episode.correct is not None and math.isfinite(episode.correct):
                self.corrects.append(episode.correct)

    def closed(self, *, passed: bool) -> None:
        """A group was filtered or passed."""
        self.groups += 1
        self.passed += passed

    def values(self, batch: SampleBatch, *, replayed: int) -> dict[str, float]:
        """Metric values for the batch that ends this window; what has no data is left out.

        Args:
            replayed: groups in it that were trained before.
        """
        effective = list({sample.task_id: sample.reward for sample in batch.samples}.values())
        values = {
            "dataflow.skipped_tasks": float(self.skipped),
            "dataflow.replayed_groups": float(replayed),
            "dataflow.failed_all": float(self.failed),
        } | self.parts.means("dataflow.part.")
        for name, numbers in (
            ("dataflow.reward_all", self.rewards),
            ("dataflow.reward_effective", effective),
            ("dataflow.correct_all", self.corrects),
        ):
            if numbers:
                values[name] = sum(numbers) / len(numbers)
        if self.groups:
            values["dataflow.pass_fraction"] = self.passed / self.groups
        return values
