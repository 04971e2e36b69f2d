"""The learner's side of losses: proximal and reference passes, several updates, entropy, missing logprobs."""

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import transformers

from astraflow.config import LossSection, TrainerSection
from astraflow.errors import MessageError
from astraflow.learners.batch import read_batch
from astraflow.learners.logprobs import micro_batch_logprobs
from astraflow.learners.losses.presets import PRESETS
from astraflow.learners.model import load_model
from astraflow.learners.packing import Costs, plan_micro_batches
from astraflow.messages import Sample, array_of
from tests.learners.learner_cases import batch, digest, learner, model_folder, sample, section, state

EXAMPLES = Path(__file__).parents[2] / "examples"


def settings(preset: str = "", *, trainer: dict[str, Any] | None = None, **loss: Any) -> TrainerSection:
    """As a run file with the preset; a constant normaliser of 8."""
    parts = dict(PRESETS[preset].loss) if preset else {}
    chosen = {k: v for k, v in (PRESETS[preset].trainer if preset else {}).items() if k == "updates_per_batch"}
    return section(loss=LossSection(**{"aggregation_constant": 8} | parts | loss), **chosen | (trainer or {}))


def test_every_micro_batching_takes_the_same_step(tmp_path: Path) -> None:
    """With what looks at whole batches: M2PO's mask, two updates with proximal logprobs, KL to a reference."""
    folder = model_folder(tmp_path)
    for preset in ("m2po", "decoupled-ppo", "grpo"):
        reports = []
        for budget in (16, 4096):
            chosen = settings(preset, trainer={"micro_batch_tokens": budget, "updates_per_batch": 2})
            reports.append(learner(folder, chosen).step(batch(3)).metrics)
        small, large = reports
        assert small["train.micro_batches"] > large["train.micro_batches"]
        for what in ("loss", "grad_norm", "clip_fraction", "masked_fraction", "ess", "second_moment"):
            name = f"train.{what}"
            assert small[name] == pytest.approx(large[name], rel=1e-3, abs=1e-6), (preset, name)
    assert small["train.reference_kl"] == pytest.approx(large["train.reference_kl"], rel=1e-2)


def test_m2po_masks_in_the_learner(tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    bound, free = (
        learner(folder, settings(objective="ratio", m2_threshold=m2)).step(batch(3)).metrics for m2 in (0.01, 0.0)
    )
    assert bound["train.masked_fraction"] > 0.1
    assert free["train.masked_fraction"] == 0
    assert bound["train.second_moment"] == pytest.approx(free["train.second_moment"])


def test_proximal_logprobs_are_of_the_batchs_start_in_every_update(tmp_path: Path) -> None:
    """The engine's numerics don't clip anything then; what the first updates changed does."""
    chosen = settings("decoupled-ppo", trainer={"learning_rate": 3e-2, "updates_per_batch": 3, "max_grad_norm": 1e9})
    far = learner(model_folder(tmp_path), chosen).step(batch(3)).metrics
    assert (far["train.updates"], far["train.skipped_updates"]) == (3, 0)
    assert far["train.clip_fraction"] > 0
    still = settings("decoupled-ppo", trainer={"learning_rate": 0.0, "updates_per_batch": 3})
    metrics = learner(tmp_path, still).step(batch(3)).metrics
    assert metrics["train.clip_fraction"] == 0.0
    assert metrics["train.mismatch"] > 0.1
    assert learner(tmp_path, section(learning_rate=0.0)).step(batch(3)).metrics["train.clip_fraction"] > 0.1


def test_updates_share_a_batch_by_whole_groups_and_every_token_is_trained_once(tmp_path: Path) -> None:
    read = read_batch(batch(), vocabulary=64)
    for count, expected in ((1, 1), (2, 2), (3, 3), (9, 3)):
        shares = read.shares(count)
        assert len(shares) == expected
        assert sum(share.astype(int) for share in shares).tolist() == [1] * 12
        groups = [{read.groups_S[s] for s in share.nonzero()[0]} for share in shares]
        assert sum(map(len, groups)) == 3
        assert sum(len(read.items_of(share)) for share in shares) == len(read.items)


def test_a_bad_update_leaves_the_step_with_those_before_it(tmp_path: Path) -> None:
    huge = sample([1, 2], [3], advantage=2e38, behaviour=[0.0], group="huge")
    chosen = settings(trainer={"updates_per_batch": 2})
    one, twin = (learner(model_folder(tmp_path / name), chosen) for name in "ab")
    good = [sample([1, 2], [3, 4], group="good"), sample([1, 2], [5], advantage=-1.0, member=1, group="good")]
    report = one.step([*good, huge])
    assert report.trained
    assert (report.metrics["train.updates"], report.metrics["train.skipped_updates"]) == (1, 1)
    twin.step(good)
    assert digest(one.export()) == digest(twin.export())
    before = state(one, tmp_path / "before")
    assert (report := one.step([huge, *good])).skip_reason == "nan_gradient", report
    assert state(one, tmp_path / "after") == before


def test_reference_stays_what_training_began_with(tmp_path: Path) -> None:
    base = model_folder(tmp_path / "base")
    chosen = settings(kl=0.1, trainer={"learning_rate": 1e-2})
    one = learner(base, chosen)
    assert "train.reference_kl" not in one.step(batch(1)).metrics, "exactly 0 before the first update"
    moved = one.step(batch(2)).metrics["train.reference_kl"]
    assert moved > 0
    (tmp_path / "later").mkdir()
    one.export_model(tmp_path / "later")
    from astraflow.learners.torch_learner import TorchLearner

    cold = TorchLearner(tmp_path / "later", chosen, seed=0, threads=1, reference_folder=base)
    assert cold.step(batch(3)).metrics["train.reference_kl"] == pytest.approx(
        one.step(batch(3)).metrics["train.reference_kl"]
    )


def test_kl_pulls_back_where_nothing_is_rewarded(tmp_path: Path) -> None:
    flat = [msgspec.structs.replace(one, advantage=0.0) for one in batch(2)]
    one = learner(model_folder(tmp_path), settings(kl=1.0, kl_estimator="k2", trainer={"learning_rate": 3e-3}))
    for i in range(3):
        one.step(batch(i))
    kls = [one.step(flat).metrics["train.reference_kl"] for _ in range(12)]
    assert kls[-1] < 0.7 * max(kls)


def test_entropy_and_its_gradient_equal_the_plain_computation(tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    model, plain = load_model(folder), transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokens = torch.arange(5, 17)
    one = sample(tokens[:4].tolist(), tokens[4:].tolist())
    plan = plan_micro_batches(
        read_batch([one], vocabulary=64).items, budget_tokens=64, costs=Costs(), share_prefixes=False
    )
    _, entropy_N = micro_batch_logprobs(model, plan[0], temperature=0.7, with_entropy=True)
    assert entropy_N is not None
    logs = (plain(input_ids=tokens[None]).logits[0, 3:-1] / 0.7).log_softmax(-1)
    expected_N = -(logs.exp() * logs).sum(-1)
    torch.testing.assert_close(entropy_N, expected_N, rtol=1e-4, atol=1e-5)
    slopes = torch.linspace(-1, 2, len(entropy_N))
    (entropy_N * slopes).sum().backward()
    (expected_N * slopes).sum().backward()
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(model.module.get_parameter(name).grad, parameter.grad, rtol=1e-3, atol=1e-5)


def test_entropy_bonus_flattens(tmp_path: Path) -> None:
    flat = [msgspec.structs.replace(one, advantage=0.0) for one in batch(2)]
    one = learner(model_folder(tmp_path), settings(entropy_bonus=1.0, trainer={"learning_rate": 3e-3}))
    entropies = [one.step(flat).metrics["train.token_entropy"] for _ in range(6)]
    assert entropies[0] < entropies[-1] <= math.log(64)


def test_the_example_of_an_own_loss_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    own = settings(objective="my_loss:bounded_ratio", args={"bound": 1e9})
    metrics = learner(model_folder(tmp_path), own).step(batch(3)).metrics
    plain = learner(tmp_path, settings(objective="ratio")).step(batch(3)).metrics
    assert metrics["train.loss"] == pytest.approx(plain["train.loss"])
    assert metrics["train.grad_norm"] == pytest.approx(plain["train.grad_norm"])
    bounded = settings(objective="my_loss:bounded_ratio", args={"bound": 1.0})
    assert learner(tmp_path, bounded).step(batch(3)).metrics["train.grad_norm"] != pytest.approx(
        plain["train.grad_norm"]
    )


def without_logprobs(samples: list[Sample]) -> list[Sample]:
    return [msgspec.structs.replace(one, logprobs=array_of([], "f4")) for one in samples]


def test_missing_logprobs_are_named_where_the_loss_needs_them(tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    for chosen in (settings(), settings("decoupled-ppo"), settings("m2po")):
        with pytest.raises(MessageError, match="has no logprobs of the engine that sampled it, and the loss compares"):
            learner(folder, chosen).step(without_logprobs(batch(1)))
    for chosen in (settings(objective="logprob"), settings("gspo")):
        metrics = learner(folder, chosen).step(without_logprobs(batch(1))).metrics
        assert "train.entropy" not in metrics
        assert metrics["train.loss"] == learner(folder, chosen).step(batch(1)).metrics["train.loss"]
