"""What the answers of one evaluation round add up to.

It doesn't know when a round is due. Invariant: sums are over closed tasks only, in whatever order they close; in
snapshots, so fields are only ever appended.
"""

import math

import msgspec

from astraflow.algos.parts import Parts
from astraflow.algos.pass_at import ladder, pass_at, standard_error
from astraflow.algos.samples import Judged, judge
from astraflow.messages import Episode


class Tally(msgspec.Struct):
    """Sums of one policy over a round."""

    rewards: float = 0.0
    size: int = 0  # episodes with a valid reward
    oldest_version: int = -1  # -1 = none yet
    newest_version: int = -1
    means: list[float] = []  # mean reward of each closed task
    parts: Parts = msgspec.field(default_factory=Parts)

    def add(self, answers: list[Judged]) -> None:
        """The valid answers to one task."""
        self.rewards += sum(each.reward for each in answers)
        self.size += len(answers)
        for each in answers:
            self.parts.add(each.parts)
        self.means.append(sum(each.reward for each in answers) / len(answers))
        versions = [version for each in answers for version in each.versions]
        known = [self.oldest_version] if self.oldest_version >= 0 else []
        self.oldest_version, self.newest_version = min(known + versions), max(self.newest_version, *versions)


class Graded(msgspec.Struct, frozen=True, array_like=True):
    """The graded answers to one task."""

    answers: int
    right: int  # completely
    correct: float  # sum

    @property
    def mean(self) -> float:
        """Of the answers."""
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
    tasks: list[Graded] = []  # closed ones that are graded, in no order

    def close_task(self, episodes: list[Episode], policies: tuple[str, ...], *, failed: int) -> None:
        """All records of one task are in: these, and `failed` members without one."""
        self.closed += 1
        self.failed += failed
        answers: dict[str, list[Judged]] = {}
        corrects = []
        for episode in episodes:
            self.ended_at = max(self.ended_at, episode.ended_at)
            valid = {policy: judged for policy in policies if not (judged := judge(episode, policy)).fate}
            self.failed += not valid
            for policy, judged in valid.items():
                answers.setdefault(policy, []).append(judged)
            if valid and episode.correct is not None and math.isfinite(episode.correct):
                corrects.append(episode.correct)
        for policy, given in answers.items():
            self.tallies.setdefault(policy, Tally()).add(given)
        if corrects:
            self.corrects += sum(corrects)
            self.graded += len(corrects)
            self.tasks.append(Graded(len(corrects), sum(each >= 1 for each in corrects), sum(corrects)))

    def values(self, policy: str, *, repeats: int) -> dict[str, float]:
        """The metrics of kind eval."""
        tally = self.tallies.get(policy, Tally())
        values = {"eval.size": float(tally.size), "eval.failed": float(self.failed)}
        values |= tally.parts.means("eval.part.")
        if tally.size:
            values["eval.reward"] = tally.rewards / tally.size
            values["eval.version_newest"] = float(tally.newest_version)
        if (error := standard_error(tally.means)) is not None:
            values["eval.reward_se"] = error
        if self.graded:
            values["eval.correct"] = self.corrects / self.graded
        if (error := standard_error([each.mean for each in self.tasks])) is not None:
            values["eval.correct_se"] = error
        for k in ladder(repeats):
            chances = [pass_at(k, answers=each.answers, right=each.right) for each in self.tasks if each.answers >= k]
            if chances:
                values[f"eval.pass_at_{k}"] = math.fsum(chances) / len(chances)
        if self.ended_at > self.began_at:
            values["eval.seconds"] = self.ended_at - self.began_at
        return values
