"""What became of a run so far, from its metrics: per policy a step series and evaluations.

Pure: it is fed with `Metrics` and answers questions; it reads no file and no bus. A step that was done twice (a trainer
that resumed from a checkpoint) counts once: the highest lineage wins, and within a lineage the last message.
"""

import math
from dataclasses import dataclass, field

import msgspec

from astraflow.messages import Metrics
from astraflow.messages.metric_names import (
    DATAFLOW,
    EVAL,
    EVAL_CORRECT,
    EVAL_CORRECT_SE,
    EVAL_FAILED,
    EVAL_PASS_AT,
    EVAL_REWARD,
    EVAL_REWARD_SE,
    EVAL_SIZE,
    LABEL_SET,
    TRAIN,
    TRAIN_SKIPPED,
    WEIGHTS,
)
from astraflow.view.jsonl_lines import EpisodeLine

_LATEST_STEPS = 20


class EvalPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One evaluation of one set. None: the environment has no notion of it, or no answer counts."""

    step: int
    version: int
    correct: float | None
    reward: float | None
    size: int
    correct_se: float | None = None  # standard error, from how the tasks differ
    reward_se: float | None = None
    pass_at: dict[str, float] = {}  # by k, where tasks were answered more than once
    failed: int = 0  # episodes without a valid reward, which are in none of the means


@dataclass
class PolicyHistory:
    """One policy's steps and evaluations."""

    train: dict[int, Metrics] = field(default_factory=dict)  # by step, without those that were skipped
    skipped: dict[int, Metrics] = field(default_factory=dict)  # by batch: it made no step, so its step is another's
    flow: dict[int, Metrics] = field(default_factory=dict)  # kind dataflow, by batch
    evals: dict[str, dict[int, EvalPoint]] = field(default_factory=dict)  # by set, then step
    weights: dict[str, float] = field(default_factory=dict)  # newest value of each metric of kind weights

    def series(self, name: str, *, flow: bool = False) -> list[tuple[int, float]]:
        """(step, value) in order of steps, or (batch, value) of dataflow's metrics; only where the value is known."""
        source = self.flow if flow else self.train
        return [(step, source[step].values[name]) for step in sorted(source) if name in source[step].values]

    def seconds_per_step(self) -> float | None:
        """Mean over the newest steps of the newest lineage, by the trainer's clock; None before its second step."""
        newest = max((metrics.lineage for metrics in self.train.values()), default=0)
        steps = [step for step in sorted(self.train) if self.train[step].lineage == newest][-_LATEST_STEPS:]
        if len(steps) < 2:
            return None
        took = self.train[steps[-1]].at - self.train[steps[0]].at
        return took / (steps[-1] - steps[0]) if took > 0 else None

    def first_and_last(self, name: str) -> tuple[EvalPoint, EvalPoint] | None:
        """The evaluations of a set with the lowest and the highest step; None without any."""
        points = self.evals.get(name)
        return (points[min(points)], points[max(points)]) if points else None


@dataclass
class History:
    """All policies' histories."""

    policies: dict[str, PolicyHistory] = field(default_factory=dict)

    def of(self, policy: str) -> PolicyHistory:
        return self.policies.setdefault(policy, PolicyHistory())

    def add(self, metrics: Metrics) -> bool:
        """Take one message in; kinds that have no series are ignored. False: it is absurd, anybody may send metrics."""
        numbers = (metrics.at, metrics.values.get(EVAL_SIZE, 0), metrics.values.get(EVAL_FAILED, 0))
        if not (all(map(math.isfinite, numbers)) and metrics.step >= -1 and metrics.batch >= -1):
            return False
        if metrics.kind == EVAL:
            self.of(metrics.policy).evals.setdefault(metrics.labels.get(LABEL_SET, ""), {})[metrics.step] = eval_point(
                metrics
            )
        elif metrics.kind == WEIGHTS:
            self.of(metrics.policy).weights |= {k: v for k, v in metrics.values.items() if math.isfinite(v)}
        elif metrics.kind == TRAIN and metrics.values.get(TRAIN_SKIPPED):
            self.of(metrics.policy).skipped[metrics.batch] = metrics
        elif metrics.kind in (TRAIN, DATAFLOW):
            history = self.of(metrics.policy)
            known, key = (history.train, metrics.step) if metrics.kind == TRAIN else (history.flow, metrics.batch)
            if key not in known or metrics.lineage >= known[key].lineage:
                known[key] = metrics
        return True


def eval_point(metrics: Metrics) -> EvalPoint:
    """A message of kind eval."""
    return EvalPoint(
        step=metrics.step,
        version=metrics.version,
        correct=_known(metrics, EVAL_CORRECT),
        reward=_known(metrics, EVAL_REWARD),
        size=int(metrics.values.get(EVAL_SIZE, 0)),
        correct_se=_known(metrics, EVAL_CORRECT_SE),
        reward_se=_known(metrics, EVAL_REWARD_SE),
        pass_at=_pass_at(metrics),
        failed=int(metrics.values.get(EVAL_FAILED, 0)),
    )


def _pass_at(metrics: Metrics) -> dict[str, float]:
    """By k, the smallest first."""
    found = {
        int(k): value
        for name, value in metrics.values.items()
        for k in EVAL_PASS_AT.parts(name) or ()
        if k.isdecimal() and math.isfinite(value)
    }
    return {str(k): found[k] for k in sorted(found)}


def _known(metrics: Metrics, name: str) -> float | None:
    value = metrics.values.get(name, math.nan)
    return None if math.isnan(value) else value


@dataclass
class VersionSums:
    """Sums over the training episodes that one version began."""

    episodes: int = 0
    reward: float = 0.0
    graded: int = 0  # episodes with a notion of correct
    correct: float = 0.0


@dataclass
class EpisodeTotals:
    """Sums over all recorded episodes, evaluation included; `by_version` over those of training."""

    by_reason: dict[str, int] = field(default_factory=dict)
    generated_tokens: dict[str, int] = field(default_factory=dict)  # by policy
    by_version: dict[str, dict[int, VersionSums]] = field(default_factory=dict)  # by policy, then oldest version

    def add(self, line: EpisodeLine) -> None:
        self.by_reason[line.reason] = self.by_reason.get(line.reason, 0) + 1
        for reply in line.replies:
            self.generated_tokens[reply.policy] = self.generated_tokens.get(reply.policy, 0) + reply.tokens
            if line.eval_set or not reply.versions or reply.reward is None:
                continue
            sums = self.by_version.setdefault(reply.policy, {}).setdefault(reply.versions[0], VersionSums())
            sums.episodes += 1
            sums.reward += reply.reward
            if line.correct is not None:
                sums.graded += 1
                sums.correct += line.correct
