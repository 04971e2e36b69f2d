"""Evaluation rounds: when one is due and which tasks it has; what comes out is added up in eval_rounds.py.

It takes no credit and makes no samples. Invariant: a round is begun only while no other of its set is open; rounds
are numbered upwards, and one that was missed meanwhile is skipped for the newest. (When logs are read again, decisions
come before episodes, so an older round may still be open then.)
"""

from collections.abc import Mapping
from typing import TypedDict

import msgspec

from astraflow.config import EvalSection
from astraflow.dataflow.eval_rounds import Round, Tally
from astraflow.dataflow.trainer_progress import TrainerView
from astraflow.messages import Decision, Episode
from astraflow.messages.ids import GroupKey

SOURCE_PREFIX = "eval-"


class EvalScore(TypedDict):
    """One policy's result of a round: the fields of a `Metrics` of kind eval, without its time.

    `version` is the oldest that sampled a token, `step` that of the weights which the round asked for.
    """

    policy: str
    step: int
    version: int
    values: dict[str, float]
    labels: dict[str, str]


class EvalState(msgspec.Struct):
    """What snapshots keep of a set; append fields only."""

    rounds: dict[int, Round] = {}  # the open ones, by number
    last_round: int = -1  # newest round that was begun
    last_versions: dict[str, int] = {}  # what it asked for
    scores: list[EvalScore] = []  # not handed out yet
    requested: bool = False  # a user wants a round


class EvalSet:
    """One [eval.<name>]."""

    def __init__(
        self,
        name: str,
        section: EvalSection,
        *,
        policies: tuple[str, ...],
        trained: tuple[str, ...],
        state: EvalState | None = None,
    ) -> None:
        """`policies` are scored; those in `trained` decide when a round is due."""
        self.name = name
        self.section = section
        self.policies = policies
        self.trained = trained
        self.state = state or EvalState()

    @property
    def source(self) -> str:
        return f"{SOURCE_PREFIX}{self.name}"

    @property
    def open(self) -> bool:
        return bool(self.state.rounds)

    def due(self, trainers: Mapping[str, TrainerView]) -> int | None:
        """The number of the round to begin, if none is open; None if none is due.

        Every crossing of a multiple of `every_steps` by any trained policy makes a round due. When all of them have
        finished, a last one is, unless the newest weights were asked for already.
        """
        every, last = self.section.every_steps, self.state.last_round
        newest = sum(trainers[policy].step // every for policy in self.trained) if every else 0
        if newest > last:
            return newest
        if self.state.requested:
            return last + 1
        asked = self.state.last_versions
        unseen = any(asked.get(policy, -1) < trainers[policy].version for policy in self.trained)
        finished = all(trainers[policy].finished for policy in self.trained)
        return last + 1 if finished and unseen else None

    def keys(self, number: int) -> list[GroupKey]:
        """The groups of round `number` that weren't issued yet."""
        current = self.state.rounds.get(number)
        issued, size = (current.issued, current.size) if current else (0, self.section.size)
        first = self.section.first
        return [GroupKey(self.source, number, index) for index in range(first + issued, first + size)]

    def group_opened(self, decision: Decision) -> None:
        """A group of a round was issued; the first one begins the round."""
        state, number = self.state, decision.eval_round
        if number not in state.rounds:
            versions = dict(decision.min_versions)
            state.rounds[number] = Round(versions, self.section.size, began_at=decision.decided_at)
            state.last_round, state.last_versions, state.requested = number, versions, False
        state.rounds[number].issued += 1

    def group_closed(
        self, number: int, episodes: list[Episode], *, failed: int, trainers: Mapping[str, TrainerView]
    ) -> None:
        """A group of round `number` closed with these episodes and `failed` members without one."""
        current = self.state.rounds[number]
        current.close_task(episodes, self.policies, failed=failed)
        if current.closed == current.size:
            del self.state.rounds[number]
            for policy in self.policies:
                asked = current.versions.get(policy, 0)
                step = trainers[policy].versions.step_of(asked) if policy in trainers else 0
                values = current.values(policy, repeats=self.section.repeats)
                labels = {"set": self.name, "round": str(number)}
                version = current.tallies.get(policy, Tally()).oldest_version
                score = EvalScore(policy=policy, step=step, version=version, values=values, labels=labels)
                self.state.scores.append(score)

    def waits_for(self) -> str:
        """A sentence on the open round; "" = none is open."""
        return "; ".join(
            f"evaluation {self.name} round {number}: {current.closed} of {current.size} tasks"
            for number, current in self.state.rounds.items()
        )

    def take_scores(self) -> list[EvalScore]:
        """Results of the rounds that closed since the last call."""
        scores, self.state.scores = self.state.scores, []
        return scores
