"""Models of other families in pieces: tied or not, cut by layers or as one, experts under their files' names."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from astraflow.learners.torch_learner import TorchLearner
from tests.learners.learner_cases import SIZES, batch, digest, model_folder
from tests.learners.ranks.on_ranks import on_ranks
from tests.learners.ranks.ranked_cases import apart, ranked, settings, trained

ONE = settings("default", "fp32")


def experts_folder(folder: Path) -> Path:
    """A tiny mixture of experts."""
    torch.manual_seed(0)
    sizes = SIZES | {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}
    transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**sizes)).save_pretrained(folder)
    return folder


def start(folder: Path) -> Any:
    """What is exported before any step, and what a step makes of the masters."""
    learner = ranked(folder, ONE)
    exported = learner.export()
    return digest(exported), len(exported), trained(learner, [batch(0)])[1]


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "gpt2", "experts"])
def test_two_ranks_export_and_train_what_one_process_does(tmp_path: Path, family: str) -> None:
    folder = experts_folder(tmp_path) if family == "experts" else model_folder(tmp_path, family)
    alone = TorchLearner(folder, ONE, seed=3, threads=1)
    wanted = digest(alone.export())
    names = len(alone.export())
    lead, follower = on_ranks(2, start, folder)
    assert lead[:2] == (wanted, names)
    assert follower[1] == 0
    assert apart(lead[2], trained(alone, [batch(0)])[1]) <= 2e-6
