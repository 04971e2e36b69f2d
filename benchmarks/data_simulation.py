"""A world for `data_algorithms.py`: rollout slots, a trainer and a policy that learns, in virtual time; a real core.

Tasks: 30 % trivial, 30 % impossible, the rest with difficulties d in −2..4; a member succeeds with sigmoid(skill − d).
A group teaches in proportion to the mean |reward − mean reward| of its members, less by e per 8 steps of staleness and
by half each time that it is trained again; a step moves the skill by the mean over the batch's groups. So a group of
equal rewards teaches nothing, and one with half of them right the most (the variance of a Bernoulli variable).
Durations of episodes are lognormal around their source's median, with a long tail (sigma), and independent of the
reward. A pass over the tasks recurs as in the papers' runs: 150 steps are about 13 passes over the learnable ones.
"""

import heapq
import math
import random
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from astraflow.config import RunConfig
from astraflow.dataflow.core import DataflowCore
from astraflow.messages import (
    DecisionKind,
    Episode,
    Progress,
    Reason,
    SampleBatch,
    Task,
    Trajectory,
    Turn,
    VersionSpan,
    VersionStep,
    array_of,
)

TASKS, TRIVIAL, IMPOSSIBLE = 200, 0.3, 0.3
STALE_STEPS, AGAIN = 8.0, 0.5
POLICY = "solver"


@dataclass
class Learner:
    """What trains: skill is all that the policy has."""

    rate: float
    skill: float = 0.0
    step: int = 0
    steps_of: list[int] = field(default_factory=lambda: [0])  # by version
    trained: Counter[str] = field(default_factory=Counter)  # times that a group was

    def train(self, batch: SampleBatch, section_groups: int) -> None:
        rewards: dict[str, list[float]] = defaultdict(list)
        ages: dict[str, int] = {}
        for sample in batch.samples:
            rewards[sample.group_id].append(sample.reward)
            oldest = min(self.steps_of[span.version] for span in sample.versions)
            ages[sample.group_id] = max(ages.get(sample.group_id, 0), self.step - oldest)
        gain = sum(
            float(np.abs(np.array(each) - np.mean(each)).mean())
            * math.exp(-ages[group] / STALE_STEPS)
            * AGAIN ** self.trained[group]
            for group, each in rewards.items()
        )
        self.trained.update(list(rewards))
        self.skill += self.rate * gain / section_groups
        self.step += 1
        self.steps_of.append(self.step)


@dataclass
class Simulation:
    """One run, from the first task to the last step."""

    config: RunConfig
    seed: int = 0
    slots: int = 128
    train_s: float = 2.0
    sigma: float = 0.6
    rate: float = 0.1
    median_s: Mapping[str, float] = field(default_factory=dict)  # by source; 1 s if it isn't named

    def __post_init__(self) -> None:
        self.section = self.config.policies[POLICY].trainer
        assert self.section is not None
        self.rng = random.Random(self.seed)
        self.core = DataflowCore(self.config, incarnation="sim", sizes={"math": None})
        self.learner = Learner(self.rate)
        self.difficulty = [self._difficulty(k / TASKS) for k in range(TASKS)]
        self.queue: deque[Task] = deque()
        self.events: list[tuple[float, int, object]] = []
        self.running: dict[str, int] = {}  # task id → version
        self.closed: set[str] = set()
        self.now, self.free, self.number, self.sequence = 0.0, self.slots, 0, 0
        self.batches: list[SampleBatch] = []
        self.training = False
        self.rollouts, self.cancelled = 0, 0
        self.curve: list[tuple[int, float]] = [(0, self.success())]  # rollouts, success on the learnable tasks
        self.staleness: list[float] = []

    def _difficulty(self, place: float) -> float:
        if place < TRIVIAL:
            return -math.inf
        if place < TRIVIAL + IMPOSSIBLE:
            return math.inf
        return -2 + 6 * (place - TRIVIAL - IMPOSSIBLE) / (1 - TRIVIAL - IMPOSSIBLE)

    def chance(self, index: int) -> float:
        return 1 / (1 + math.exp(min(700.0, self.difficulty[index] - self.learner.skill)))

    def success(self) -> float:
        """Mean chance over the tasks that are neither trivial nor impossible."""
        learnable = [k for k in range(TASKS) if math.isfinite(self.difficulty[k])]
        return sum(map(self.chance, learnable)) / len(learnable)

    def run(self) -> "Simulation":
        changed = True
        while not self.core.finished:
            if changed:
                self._decide()
            self._start()
            if not self.events:
                raise RuntimeError(f"nothing happens any more: {self.core.waits_for()}")
            self.now, _, event = heapq.heappop(self.events)
            changed = self._end(event) if isinstance(event, Task) else self._trained()
        return self

    def _later(self, seconds: float, event: object) -> None:
        self.number += 1
        heapq.heappush(self.events, (self.now + seconds, self.number, event))

    def _decide(self) -> None:
        self._issue()
        while (batch := self.core.next_batch(POLICY)) is not None:
            self.core.apply_batch(batch)
            self.batches.append(batch)
        self._issue()  # what went stale is replaced

    def _issue(self) -> None:
        for decision in self.core.plan(self.now):
            self.core.apply_decision(decision)
            if decision.kind is DecisionKind.CLOSE:
                self._cancel(decision.group_id)
            self.queue.extend(self.core.tasks_of(decision, lambda env, index: {"index": index}))

    def _start(self) -> None:
        while self.queue and self.free:
            task = self.queue.popleft()
            if task.group_id not in self.closed:
                self.free -= 1
                self.rollouts += 1
                self.running[task.id] = self.learner.step
                median_s = self.median_s.get(task.source, 1.0)
                self._later(median_s * math.exp(self.rng.gauss(0.0, self.sigma)), task)
        if not self.training and self.learner.step < len(self.batches):
            self.training = True
            self._later(self.train_s, None)

    def _cancel(self, group: str) -> None:
        """What the rollouts do when they hear that a group is closed."""
        self.closed.add(group)
        for task_id in [each for each in self.running if each.rsplit("/", 1)[0] == group]:
            del self.running[task_id]
            self.free += 1
            self.cancelled += 1

    def _end(self, task: Task) -> bool:
        """An episode is over; whether there may be something to decide."""
        version = self.running.pop(task.id, None)
        if version is None:
            return False  # cancelled
        self.free += 1
        self.sequence += 1
        reward = float(self.rng.random() < self.chance(task.payload["index"]))
        taken = self.core.on_episode(episode_of(task, reward, version), self.sequence)
        return bool(taken.fates) or self.config.sources[task.source].extra > 0

    def _trained(self) -> bool:
        """A step is done."""
        batch = self.batches[self.learner.step]
        self.staleness.append(batch.mean_staleness)
        assert self.section is not None
        self.learner.train(batch, self.section.batch_groups)
        self.training = False
        self.curve.append((self.rollouts, self.success()))
        recent = tuple(VersionStep(version=v, step=s) for v, s in enumerate(self.learner.steps_of))[-64:]
        step = self.learner.step
        self.core.on_progress(
            Progress(
                policy=POLICY,
                consumed=step,
                step=step,
                version=step,
                epoch=0,
                recent=recent,
                finished=step >= self.section.steps,
            )
        )
        return True


_TOKENS = array_of(np.arange(2), "i4")
_LOGPROBS = array_of(np.full(2, -0.5), "f4")


def episode_of(task: Task, reward: float, version: int) -> Episode:
    """A record of two tokens."""
    turn = Turn(
        context_tokens=_TOKENS,
        completion_tokens=_TOKENS,
        logprobs=_LOGPROBS,
        finish_reason="stop",
        versions=(VersionSpan(version=version, start=0, end=2),),
    )
    return Episode(
        **task.ref(),
        task_id=task.id,
        reason=Reason.OK,
        correct=reward,
        trajectories=(Trajectory(policy=POLICY, turns=(turn,), reward=reward),),
    )
