"""Means of the parts that rewards are made of, by name. Pure; in snapshots, so fields are only ever appended."""

import math
from collections.abc import Mapping

import msgspec

from astraflow.messages.metric_names import MetricFamily

MOST_NAMES = 32  # each is a metric; what comes later isn't counted


class PartSums(msgspec.Struct):
    """Sums by name. An episode counts in the parts that it has."""

    totals: dict[str, float] = {}
    counts: dict[str, int] = {}

    def add(self, parts: Mapping[str, float]) -> None:
        """Of one episode."""
        for name, value in parts.items():
            if math.isfinite(value) and (name in self.totals or len(self.totals) < MOST_NAMES):
                self.totals[name] = self.totals.get(name, 0.0) + value
                self.counts[name] = self.counts.get(name, 0) + 1

    def means(self, family: MetricFamily) -> dict[str, float]:
        """By the name of a metric."""
        return {family.of(name): total / self.counts[name] for name, total in sorted(self.totals.items())}
