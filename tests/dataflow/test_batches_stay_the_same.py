"""A seeded world's batches, ledgers, notes and metrics to the last bit: a restructuring must not move them."""

import hashlib

import msgspec
import pytest

from astraflow.config import (
    DataflowSection,
    EnvSection,
    EvalSection,
    ReplaySection,
    RunConfig,
    SamplingSection,
    SelectSection,
    SourceSection,
    TrainerSection,
)
from astraflow.messages import Reason, SampleBatch, Task, Trajectory
from astraflow.messages.metric_names import DATAFLOW_FAILED_ALL
from tests.dataflow.dataflow_world import World, config_of, turn

NEWER = (DATAFLOW_FAILED_ALL,)  # metrics that came after the digests were taken
DIGESTS = {
    ("grpo", "none"): "166c4921694b8188",
    ("dr-grpo", "none"): "589bba57b4c617fa",
    ("rloo", "none"): "fad82a581e6f4438",
    ("reward", "none"): "f886872bb6dc3d87",
    ("grpo", "prioritized"): "0f39d207149d1ca8",
    ("dr-grpo", "prioritized"): "2ed0cbdc0100ea91",
    ("rloo", "prioritized"): "2238b80d1532d570",
    ("reward", "prioritized"): "e0fe72259677366b",
}


def config(advantage: str, kind: str) -> RunConfig:
    made = config_of(
        trainers={
            "solver": TrainerSection(
                steps=10,
                batch_groups=3,
                max_staleness=2,
                prefetch=1,
                advantage=advantage,
                overlong_penalty=0.5,
                replay=ReplaySection(kind=kind, share=0.34, capacity=6, max_uses=3),
            ),
            "verifier": TrainerSection(steps=6, batch_groups=2, max_staleness=1, filters=("truncated",)),
        },
        envs={"math": EnvSection(kind="toy"), "solo": EnvSection(kind="toy", args={"policy": "solver"})},
        sources={
            "train": SourceSection(env="math", group_size=4, extra=1, select=SelectSection(kind="greso")),
            "extra": SourceSection(env="solo", group_size=3, weight=0.5, size=7, shuffle=True),
        },
        evals={"held": EvalSection(env="math", size=3, repeats=4, every_steps=3)},
        dataflow=DataflowSection(task_deadline_s=100.0, max_attempts=2, min_group_size=2),
        seed=11,
    )
    short = SamplingSection(max_new_tokens=6)
    policies = {name: msgspec.structs.replace(policy, sampling=short) for name, policy in made.policies.items()}
    return msgspec.structs.replace(made, policies=policies)


def answer(world: World, task: Task) -> None:
    """Rewards of few values, solvers in two roles, replies of all lengths, failures and cut replies."""
    rng = world.rng
    reason = rng.choice([Reason.OK] * 8 + [Reason.TRUNCATED, Reason.POLICY, Reason.ENV, Reason.INFRA])
    version = {name: max(0, trainer.version - rng.randrange(2)) for name, trainer in world.trainers.items()}
    trajectories = [
        Trajectory(
            policy=policy,
            role=role,
            reward=rng.randrange(3) / 2,
            turns=tuple(turn(version[policy], sampled=rng.randrange(1, 8)) for _ in range(rng.randrange(1, 3))),
        )
        for policy, role in [("solver", "black"), ("solver", "white"), ("verifier", "")]
        if rng.random() < 0.9
    ]
    world.answer(task, {}, reason=reason, trajectories=tuple(trajectories), correct=float(rng.random() < 0.4))


def content(batch: SampleBatch) -> bytes:
    """What is trained and how, field by field: one that is appended later doesn't change it."""
    samples = [
        (s.id, s.tokens.data, s.loss_mask.data, s.logprobs.data, s.versions, s.advantage, s.reward)
        for s in batch.samples
    ]
    ages = (batch.train_step, batch.mean_staleness, batch.max_staleness, batch.oldest_version)
    return msgspec.msgpack.encode((batch.policy, batch.number, batch.group_ids, samples, ages, batch.last))


def played(world: World) -> str:
    """A whole run with crashes; the digest of all that came of it."""
    digest = hashlib.sha256()
    for step in range(1, 2000):
        world.plan()
        for policy in world.trainers:
            while (batch := world.emit(policy)) is not None:
                digest.update(content(batch))
                values = {name: v for name, v in world.core.batch_metrics(policy).items() if name not in NEWER}
                digest.update(msgspec.msgpack.encode(sorted(values.items())))
        world.scores += world.core.eval_results()
        world.check()
        if world.core.finished:
            break
        for _ in range(world.rng.randrange(8)):
            if task := world.pull():
                answer(world, task)
        for _ in range(world.rng.randrange(8)):
            world.read_one()
        if world.rng.random() < 0.5:
            world.train(world.rng.choice(sorted(world.trainers)))
        if world.rng.random() < 0.1:
            world.save()
        if step % 40 == 0:
            world.crash()
            world.tell_all()
        world.now += 5.0
    assert world.core.finished, world.core.waits_for()
    for policy in world.trainers:
        counts = {str(reason): count for reason, count in world.core.ledger(policy).items()}
        digest.update(msgspec.msgpack.encode([sorted(counts.items()), world.core.notes(policy)]))
    digest.update(msgspec.msgpack.encode(world.scores))
    return digest.hexdigest()[:16]


@pytest.mark.parametrize("advantage", ["grpo", "dr-grpo", "rloo", "reward"])
@pytest.mark.parametrize("kind", ["none", "prioritized"])
def test_a_seeded_world_gives_the_same_batches_to_the_last_bit(advantage: str, kind: str) -> None:
    world = World(config(advantage, kind), seed=5)
    assert played(world) == DIGESTS[advantage, kind]
