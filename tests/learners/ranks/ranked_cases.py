"""What the tests of ranked learners run on each rank."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.distributed.tensor import DTensor

from astraflow.config import CriticSection, LossSection, TrainerSection
from astraflow.learners.ranks.group import Ranks
from astraflow.learners.torch_learner import TorchLearner
from astraflow.messages import Sample
from astraflow.models.loading import Sharding
from tests.learners.learner_cases import batch, section

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "two updates": {"updates_per_batch": 2},
    "sequence ratios": {"loss": LossSection(ratio="sequence")},
    "recomputed layers": {"activation_checkpointing": True},
    "m2po": {"loss": LossSection(m2_threshold=0.001)},
    "proximal": {"loss": LossSection(proximal="recompute", correction="token")},
    "reference": {"loss": LossSection(kl=0.1, entropy_bonus=0.01)},
    "critic": {"critic": CriticSection(warmup_steps=1), "advantage": "gae"},
}


def settings(variant: str, dtype: str) -> TrainerSection:
    return section(weight_decay=0.01, dtype=dtype, **VARIANTS[variant])


def ranked(folder: Path, one: TrainerSection, *, replicate: int = 1) -> TorchLearner:
    """One rank's learner; of a world of one rank too."""
    team = Ranks()
    dtype = torch.bfloat16 if one.dtype == "bf16" else torch.float32
    sharding = Sharding(data=team.size // replicate, replicate=replicate, dtype=dtype)
    return TorchLearner(folder, one, seed=3, threads=1, team=team, sharding=sharding)


def masters(learner: TorchLearner) -> dict[str, torch.Tensor]:
    """Whole ones; copies. Of a sharded learner all ranks ask together."""
    whole = {n: m.full_tensor() if isinstance(m, DTensor) else m for n, m in learner._master.masters.items()}
    return {name: tensor.detach().clone() for name, tensor in whole.items()}


def trained(
    learner: TorchLearner, batches: Sequence[Sequence[Sample]]
) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    """Metrics of each step, and the masters afterwards."""
    reports = [learner.step(each) for each in batches]
    assert all(report.trained for report in reports), reports
    return [dict(report.metrics) for report in reports], masters(learner)


def train_ranked(folder: Path, one: TrainerSection, seeds: Sequence[int], replicate: int = 1) -> Any:
    return trained(ranked(folder, one, replicate=replicate), [batch(seed) for seed in seeds])


def train_on_ranks(folder: Path, one: TrainerSection, batches: Sequence[Sequence[Sample]]) -> Any:
    return trained(ranked(folder, one), batches)


def train_on(folder: Path, one: TrainerSection, batches: Sequence[Sequence[Sample]]) -> Any:
    """In this process alone."""
    return trained(TorchLearner(folder, one, seed=3, threads=1), batches)


def train_alone(folder: Path, one: TrainerSection, seeds: Sequence[int]) -> Any:
    return train_on(folder, one, [batch(seed) for seed in seeds])


def skip_on_ranks(folder: Path, one: TrainerSection) -> Any:
    """After a good step one with an advantage that no gradient can hold, in the last of its samples."""
    learner = ranked(folder, one)
    trained(learner, [batch(0)])
    before = masters(learner)
    *good, last = batch(1)
    report = learner.step([*good, msgspec.structs.replace(last, advantage=3e38)])
    return [report.skip_reason], before, masters(learner)


def apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Relative distance of all weights together."""
    difference = sum(float((one[n].double() - other[n].double()).square().sum()) for n in other)
    return (difference / sum(float(t.double().square().sum()) for t in other.values())) ** 0.5
