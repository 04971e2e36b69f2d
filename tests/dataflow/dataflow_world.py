"""A world around a `DataflowCore`: logs, a task queue, rollouts and trainers, driven one seeded step at a time.

The logs are lists, as durable as the test wants them to be; the core is the real one and can be killed at any step.
"""

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np

from astraflow.config import (
    DataflowSection,
    EnvSection,
    EvalSection,
    PolicySection,
    RunConfig,
    RunSection,
    SourceSection,
    TrainerSection,
)
from astraflow.dataflow.core import DataflowCore
from astraflow.dataflow.evals import EvalScore
from astraflow.dataflow.ledger import ISSUED, RECORD_COUNTS
from astraflow.messages import (
    Decision,
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

INCARNATION = "inc"


def imbalance(counts: Mapping[str, int]) -> int:
    """issued − everything that became of it; 0 unless a task was lost or counted twice."""
    ended = sum(count for reason, count in counts.items() if reason not in RECORD_COUNTS and reason != ISSUED)
    return counts.get(ISSUED, 0) - ended


def turn(version: int, *, context: int = 2, sampled: int = 3) -> Turn:
    return Turn(
        context_tokens=array_of(np.arange(context), "i4"),
        completion_tokens=array_of(np.arange(sampled) + 10, "i4"),
        logprobs=array_of(np.full(sampled, -0.5), "f4"),
        versions=(VersionSpan(version=version, start=0, end=sampled),) if sampled else (),
        finish_reason="stop",
    )


def episode_of(
    task: Task, rewards: Mapping[str, float], *, reason: Reason = Reason.OK, versions: Mapping[str, int] | None = None
) -> Episode:
    """The record of a task: one single-turn trajectory per policy in `rewards`, sampled by `versions` (default: 0)."""
    versions = versions or {}
    return Episode(
        **task.ref(),
        task_id=task.id,
        reason=reason,
        correct=float(sum(rewards.values()) > 0),
        trajectories=tuple(
            Trajectory(policy=policy, turns=(turn(versions.get(policy, 0)),), reward=reward)
            for policy, reward in rewards.items()
        ),
    )


def config_of(
    *,
    trainers: Mapping[str, TrainerSection] | None = None,
    sources: Mapping[str, SourceSection] | None = None,
    envs: Mapping[str, EnvSection] | None = None,
    evals: Mapping[str, EvalSection] | None = None,
    dataflow: DataflowSection | None = None,
    deterministic: bool = False,
    seed: int = 0,
) -> RunConfig:
    """A run with one policy `solver`, one environment `math` and one source `train`, unless told otherwise."""
    trainers = trainers or {"solver": TrainerSection(steps=4, batch_groups=2)}
    return RunConfig(
        run=RunSection(name="t", seed=seed, deterministic=deterministic),
        policies={name: PolicySection(model="toy", trainer=section) for name, section in trainers.items()},
        envs=dict(envs or {"math": EnvSection(kind="toy")}),
        sources=dict(sources or {"train": SourceSection(env="math", group_size=2)}),
        eval=dict(evals or {}),
        dataflow=dataflow or DataflowSection(task_deadline_s=100.0),
    )


@dataclass
class Trainer:
    """A trainer that never checkpoints and never dies, unless it is told to."""

    policy: str
    steps: int
    epoch: int = 1
    consumed: int = 0
    step: int = 0
    version: int = 0
    versions: dict[int, int] = field(default_factory=lambda: {0: 0})
    exhausted: bool = False
    history: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])  # (consumed, step) after each batch

    @property
    def finished(self) -> bool:
        return self.step >= self.steps or self.exhausted

    def train(self, batch: SampleBatch, *, skip: bool = False) -> None:
        assert batch.number == self.consumed + 1, (batch.number, self.consumed)
        self.consumed = batch.number
        self.exhausted = batch.last
        if batch.samples and not skip:
            self.step += 1
            self.version += 1
            self.versions[self.version] = self.step
        self.history.append((self.consumed, self.step))

    def fall_back(self, batches: int) -> None:
        """Die and resume from a checkpoint of `batches` ago; the weights become a newer version of an older step."""
        del self.history[max(1, len(self.history) - batches) :]
        self.consumed, self.step = self.history[-1]
        self.epoch += 1
        self.version += 1
        self.versions[self.version] = self.step

    def progress(self) -> Progress:
        recent = tuple(VersionStep(version=v, step=s) for v, s in sorted(self.versions.items()))
        return Progress(
            policy=self.policy,
            consumed=self.consumed,
            step=self.step,
            version=self.version,
            epoch=self.epoch,
            recent=recent,
            finished=self.finished,
        )


class World:
    """One run. Every method is one thing that can happen."""

    def __init__(self, config: RunConfig, *, sizes: Mapping[str, int | None] | None = None, seed: int = 0) -> None:
        self.config = config
        self.sizes = sizes or dict.fromkeys(config.envs)
        self.rng = random.Random(seed)
        self.now = 0.0
        self.core = DataflowCore(config, incarnation=INCARNATION, sizes=self.sizes)
        self.decisions: list[Decision] = []
        self.episodes: list[Episode] = []
        self.read = 0
        self.queue: list[Task] = []
        self.scores: list[EvalScore] = []
        self.trainers = {
            name: Trainer(name, policy.trainer.steps)
            for name, policy in config.policies.items()
            if policy.trainer is not None
        }
        self.samples: dict[str, list[SampleBatch]] = {name: [] for name in self.trainers}
        self.save()

    # --- dataflow ---

    def plan(self, *, apply: bool = True) -> int:
        """Decide and publish; with apply=False the core dies between the log and its own state."""
        planned = self.core.plan(self.now)
        for decision in planned:
            self.decisions.append(decision)
            if not apply:
                break
            self.core.apply_decision(decision)
            self.publish(decision)
        return len(planned)

    def publish(self, decision: Decision) -> None:
        self.queue += self.core.tasks_of(decision, lambda env, index: {"env": env, "index": index})

    def emit(self, policy: str, *, apply: bool = True) -> SampleBatch | None:
        batch = self.core.next_batch(policy)
        if batch is not None:
            self.samples[policy].append(batch)
            if apply:
                self.core.apply_batch(batch)
        return batch

    def act(self) -> None:
        """What the actor does between two inputs."""
        self.plan()
        for policy in self.trainers:
            while self.emit(policy) is not None:
                pass
        self.scores += self.core.eval_results()

    def read_one(self) -> None:
        if self.read < len(self.episodes):
            self.read += 1
            self.core.on_episode(self.episodes[self.read - 1], self.read)

    def save(self) -> None:
        self.saved = (
            self.core.snapshot(),
            self.read,
            len(self.decisions),
            {p: len(log) for p, log in self.samples.items()},
        )

    def crash(self) -> None:
        """Kill the core and bring it back from the last snapshot and the logs."""
        data, read, decided, emitted = self.saved
        self.core = DataflowCore.restore(self.config, data, sizes=self.sizes)
        assert all(sequence <= read for sequence in self.core.references())
        early = self.rng.random() < 0.5  # episodes are looked up before or after the logs are read
        if early:
            self.resolve()
        for policy, log in self.samples.items():
            for batch in log[emitted[policy] :]:
                self.core.apply_batch(batch)
        for decision in self.decisions[decided:]:
            self.core.apply_decision(decision)
        if not early:
            self.resolve()
        self.read = read
        for decision in self.core.unfinished():
            self.publish(decision)
        if self.rng.random() < 0.5:  # progress may be heard before or after the episodes
            self.tell_all()

    def resolve(self) -> None:
        self.core.resolve({sequence: self.episodes[sequence - 1] for sequence in self.core.references()})

    def tell_all(self) -> None:
        for trainer in self.trainers.values():
            self.core.on_progress(trainer.progress())

    # --- the others ---

    def answer(self, task: Task, rewards: Mapping[str, float] | None = None, **changes: object) -> Episode:
        """A rollout puts a task's record into the log; by default all policies get a random reward."""
        if rewards is None:
            rewards = {policy: float(self.rng.random() < 0.5) for policy in self.config.policies}
        versions = {
            policy: max(task.min_versions.get(policy, 0), trainer.version - self.rng.randrange(2), 0)
            for policy, trainer in self.trainers.items()
        }  # replicas may lag, but not behind what the task asks for
        episode = msgspec.structs.replace(episode_of(task, rewards, versions=versions), **changes)
        self.episodes.append(episode)
        return episode

    def pull(self) -> Task | None:
        return self.queue.pop(self.rng.randrange(len(self.queue))) if self.queue else None

    def train(self, policy: str, *, tell: bool = True) -> None:
        trainer, log = self.trainers[policy], self.samples[policy]
        if not trainer.finished and trainer.consumed < len(log):
            batch = log[trainer.consumed]
            self.check_staleness(trainer, batch)
            trainer.train(batch)
        if tell:
            self.core.on_progress(trainer.progress())

    # --- what must hold ---

    def check_staleness(self, trainer: Trainer, batch: SampleBatch) -> None:
        section = self.config.policies[trainer.policy].trainer
        assert section is not None
        bound = 0 if self.config.run.deterministic else max(section.max_staleness, section.replay.max_staleness)
        for sample in batch.samples:
            for span in sample.versions:
                assert trainer.step - trainer.versions[span.version] <= bound, (batch.number, sample.id, span)

    def check(self) -> None:
        """Whatever happened: batches are contiguous, nothing is emitted more often than allowed, ledgers add up."""
        for policy, log in self.samples.items():
            assert [batch.number for batch in log] == list(range(1, len(log) + 1))
            ids = Counter(sample.id for batch in log for sample in batch.samples)
            section = self.config.policies[policy].trainer
            assert section is not None
            most = 1 if section.replay.kind == "none" else section.replay.max_uses
            assert not ids or max(ids.values()) <= most, ids.most_common(1)
            ledger = self.core.ledger(policy)
            assert imbalance(ledger) == 0, ledger
            assert min(ledger.values()) >= 0, ledger

    def emitted_tasks(self, policy: str) -> list[str]:
        return sorted({sample.task_id for batch in self.samples[policy] for sample in batch.samples})

    def run(self, *, most_steps: int = 5000) -> None:
        """An always-answering world, in order and without faults, until the core is finished."""
        for _ in range(most_steps):
            self.act()
            self.check()
            if self.core.finished:
                return
            while (task := self.pull()) is not None:
                self.answer(task)
            while self.read < len(self.episodes):
                self.read_one()
            for policy in self.trainers:
                self.train(policy)
            self.now += 1.0
        raise AssertionError(f"not finished after {most_steps} steps: {self.core.waits_for()}")


GOOD, BAD = {"solver": 1.0}, {"solver": 0.0}


def world_of(
    *, steps: int = 4, group_size: int = 2, dataflow: DataflowSection | None = None, **trainer: object
) -> World:
    section = TrainerSection(steps=steps, batch_groups=2, **trainer)
    source = SourceSection(env="math", group_size=group_size)
    return World(config_of(trainers={"solver": section}, sources={"train": source}, dataflow=dataflow))


def read_all(world: World) -> None:
    while world.read < len(world.episodes):
        world.read_one()


def answer_group(world: World, index: int, *rewards: float) -> None:
    """Answer a group's members in order; one reward each."""
    tasks = sorted((t for t in world.queue if t.group_id == f"inc/train/0/{index}"), key=lambda task: task.member)
    for task, reward in zip(tasks, rewards, strict=True):
        world.queue.remove(task)
        world.answer(task, {"solver": reward})
    read_all(world)
