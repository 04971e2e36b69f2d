"""What the answers of one evaluation round add up to: means, pass@k, and how sure they are.

It doesn't know when a round is due. Invariant: sums are over closed tasks only, in whatever order they close; in
snapshots, so fields are only ever appended.
Axes: Q tasks (questions) of an evaluation.
"""

import math
from collections.abc import Sequence

import msgspec

from astraflow.dataflow.part_sums import PartSums
from astraflow.dataflow.samples import JudgedMember, judge_episode
from astraflow.messages import Episode
from astraflow.messages.metric_names import (
    EVAL_CORRECT,
    EVAL_CORRECT_SE,
    EVAL_FAILED,
    EVAL_PART,
    EVAL_PASS_AT,
    EVAL_REWARD,
    EVAL_REWARD_SE,
    EVAL_SECONDS,
    EVAL_SIZE,
    EVAL_VERSION_NEWEST,
)


def pass_at(k: int, *, answers: int, right: int) -> float:
    """The chance that at least one of k answers is right, estimated without bias from `answers` ≥ k of them.

    1 − C(answers − right, k) / C(answers, k). Source: arXiv:2107.03374 §2.1.
    """
    assert 1 <= k <= answers, (k, answers)
    return 1.0 - math.comb(answers - right, k) / math.comb(answers, k)


def ladder(repeats: int) -> tuple[int, ...]:
    """The k that are reported for so many answers per task: 2, 4, 8, … and all of them; () for one answer."""
    powers = [1 << exponent for exponent in range(1, repeats.bit_length())]
    return tuple(sorted({*powers, repeats} - {1}))


def standard_error(means_Q: Sequence[float]) -> float | None:
    """The standard error of the mean over tasks, from how the tasks differ; None for fewer than two."""
    count = len(means_Q)
    if count < 2:
        return None
    mean = math.fsum(means_Q) / count
    return math.sqrt(math.fsum((task_mean - mean) ** 2 for task_mean in means_Q) / (count - 1) / count)


class Tally(msgspec.Struct):
    """Sums of one policy over a round."""

    rewards: float = 0.0
    size: int = 0  # episodes with a valid reward
    oldest_version: int = -1  # -1 = none yet
    newest_version: int = -1
    means: list[float] = []  # mean reward of each closed task
    parts: PartSums = msgspec.field(default_factory=PartSums)

    def add_answers(self, answers: list[JudgedMember]) -> None:
        """The valid answers to one task."""
        self.rewards += sum(answer.reward for answer in answers)
        self.size += len(answers)
        for answer in answers:
            self.parts.add(answer.parts)
        self.means.append(sum(answer.reward for answer in answers) / len(answers))
        versions = [version for answer in answers for version in answer.versions]
        known = [self.oldest_version] if self.oldest_version >= 0 else []
        self.oldest_version, self.newest_version = min(known + versions), max(self.newest_version, *versions)


class _Graded(msgspec.Struct, frozen=True, array_like=True):
    """The graded answers to one task."""

    answers: int
    right: int  # completely
    correct: float  # sum

    @property
    def mean(self) -> float:
        """How correct the answers are, on average."""
        return self.correct / self.answers


class Round(msgspec.Struct):
    """An open round. In snapshots; append fields only."""

    versions: dict[str, int]  # per trainable policy, the oldest version that may answer
    size: int  # groups
    issued: int = 0  # groups
    closed: int = 0  # groups
    failed: int = 0  # episodes without a valid reward
    corrects: float = 0.0
    graded: int = 0  # episodes with a notion of correct
    began_at: float = 0.0  # unix seconds
    ended_at: float = 0.0
    tallies: dict[str, Tally] = {}
    tasks: list[_Graded] = []  # closed ones that are graded, in no order

    def close_task(self, episodes: list[Episode], policies: tuple[str, ...], *, failed: int) -> None:
        """All records of one task are in: these, and `failed` members without one."""
        self.closed += 1
        self.failed += failed
        answers: dict[str, list[JudgedMember]] = {}
        corrects = []
        for episode in episodes:
            self.ended_at = max(self.ended_at, episode.ended_at)
            valid = {policy: judged for policy in policies if (judged := judge_episode(episode, policy)).fate is None}
            self.failed += not valid
            for policy, judged in valid.items():
                answers.setdefault(policy, []).append(judged)
            if valid and episode.correct is not None and math.isfinite(episode.correct):
                corrects.append(episode.correct)
        for policy, valid_answers in answers.items():
            self.tallies.setdefault(policy, Tally()).add_answers(valid_answers)
        if corrects:
            self.corrects += sum(corrects)
            self.graded += len(corrects)
            self.tasks.append(_Graded(len(corrects), sum(correct >= 1 for correct in corrects), sum(corrects)))

    def values(self, policy: str, *, repeats: int) -> dict[str, float]:
        """The metrics of kind eval."""
        tally = self.tallies.get(policy, Tally())
        values = {EVAL_SIZE: float(tally.size), EVAL_FAILED: float(self.failed)}
        values |= tally.parts.means(EVAL_PART)
        if tally.size:
            values[EVAL_REWARD] = tally.rewards / tally.size
            values[EVAL_VERSION_NEWEST] = float(tally.newest_version)
        if (error := standard_error(tally.means)) is not None:
            values[EVAL_REWARD_SE] = error
        if self.graded:
            values[EVAL_CORRECT] = self.corrects / self.graded
        if (error := standard_error([task.mean for task in self.tasks])) is not None:
            values[EVAL_CORRECT_SE] = error
        for k in ladder(repeats):
            chances = [pass_at(k, answers=task.answers, right=task.right) for task in self.tasks if task.answers >= k]
            if chances:
                values[EVAL_PASS_AT.of(k)] = math.fsum(chances) / len(chances)
        if self.ended_at > self.began_at:
            values[EVAL_SECONDS] = self.ended_at - self.began_at
        return values
