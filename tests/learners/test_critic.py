"""A critic beside the policy: what it learns, what it moves, what of it is kept and what is published."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from astraflow.config import CriticSection, LossSection, TrainerSection
from astraflow.errors import WeightsError
from astraflow.learners.critic import ValueHead
from astraflow.learners.model import load_model
from astraflow.learners.torch_learner import TorchLearner
from astraflow.messages import Sample, array_of
from tests.learners.learner_cases import (
    VOCABULARY,
    as_torch,
    batch,
    digest,
    learner,
    model_folder,
    sample,
    section,
    state,
)


def settings(trainer: dict[str, Any] | None = None, **critic: Any) -> TrainerSection:
    loss = LossSection(normalise="batch", clip_high=0.2)
    return section(critic=CriticSection(**critic), advantage="gae", loss=loss, **(trainer or {}))


def told_by_the_prompt(seed: int, *, count: int = 16) -> list[Sample]:
    """The prompt's last token says whether the reply, one random token, will be worth 1 or 0."""
    rng = np.random.default_rng(seed)
    samples = []
    for i in range(count):
        prompt = [*rng.integers(2, VOCABULARY, 3).tolist(), i % 2]
        reply = rng.integers(2, VOCABULARY, 1).tolist()
        samples.append(sample(prompt, reply, advantage=float(i % 2), group=f"g{i}"))
    return samples


def test_value_loss_falls_and_the_variance_gets_explained(tmp_path: Path) -> None:
    still = {"learning_rate": 0.0, "micro_batch_tokens": 4096}
    one = learner(model_folder(tmp_path), settings(still, gae_lambda=1.0, value_clip=0.0, learning_rate=0.06))
    first = one.step(told_by_the_prompt(0)).metrics
    assert first["train.value_loss"] == pytest.approx(0.25)  # ½·mean of 1 and 0
    assert first["train.explained_variance"] == pytest.approx(0.0)
    assert (first["train.value_mean"], first["train.return_mean"]) == (0.0, pytest.approx(0.5))
    for _ in range(14):
        last = one.step(told_by_the_prompt(0)).metrics
    assert last["train.value_loss"] < 0.2 * first["train.value_loss"]
    assert last["train.explained_variance"] > 0.6


def test_groups_of_equal_rewards_teach_the_critic_and_then_the_policy(tmp_path: Path) -> None:
    one = learner(model_folder(tmp_path), settings())
    before = digest(one.export())
    report = one.step([sample([1, 2], [3, 4], advantage=1.0), sample([1, 2], [5, 6, 7], advantage=1.0, member=1)])
    assert report.trained
    assert report.metrics["train.skipped_samples"] == 0
    assert report.metrics["train.value_loss"] > 0
    assert digest(one.export()) != before


@pytest.mark.parametrize("coefficient", [0.0, 0.5])
def test_every_micro_batching_takes_the_same_step(tmp_path: Path, coefficient: float) -> None:
    folder = model_folder(tmp_path)
    reports = []
    for budget in (16, 4096):
        chosen = settings({"micro_batch_tokens": budget, "updates_per_batch": 2}, coefficient=coefficient)
        one = learner(folder, chosen)
        one.step(batch(1))
        reports.append(one.step(batch(3)).metrics)
    small, large = reports
    assert small["train.micro_batches"] > large["train.micro_batches"]
    for what in ("loss", "grad_norm", "value_loss", "value_grad_norm", "value_mean", "explained_variance"):
        name = f"train.{what}"
        assert small[name] == pytest.approx(large[name], rel=2e-3, abs=1e-5), name


def test_while_it_warms_up_not_one_bit_of_the_policy_moves(tmp_path: Path) -> None:
    """Also where its gradient would reach the backbone, and decay would shrink it; the policy's own warm-up follows."""
    chosen = settings({"warmup_steps": 2, "weight_decay": 0.1}, warmup_steps=2, coefficient=0.5)
    one = learner(model_folder(tmp_path), chosen)
    before = digest(one.export())
    reports = [one.step(batch(i)) for i in range(2)]
    assert digest(one.export()) == before
    assert all(report.trained and report.metrics["train.value_grad_norm"] > 0 for report in reports)
    assert reports[1].metrics["train.value_mean"] != 0
    rates = [report.metrics["train.lr"] for report in (*reports, one.step(batch(2)), one.step(batch(3)))]
    assert rates == [0, 0, pytest.approx(5e-4), pytest.approx(1e-3)]
    assert digest(one.export()) != before


def policy_after(folder: Path, chosen: TrainerSection) -> str:
    one = learner(folder, chosen)
    for _ in range(2):
        one.step(told_by_the_prompt(0, count=4))
    return digest(one.export())


def test_its_gradient_reaches_the_backbone_by_its_coefficient(tmp_path: Path) -> None:
    """The first step's head is 0 and passes nothing on; in the second it does, if the coefficient lets it."""
    folder = model_folder(tmp_path)
    fixed: dict[str, Any] = {"gae_lambda": 1.0, "value_clip": 0.0}
    assert policy_after(folder, settings(**fixed)) != policy_after(folder, settings(coefficient=0.5, **fixed))


@pytest.mark.parametrize("coefficient", [0.0, 0.25])
def test_gradients_of_the_head_equal_finite_differences(coefficient: float) -> None:
    generator = torch.Generator().manual_seed(0)
    head = ValueHead(6, coefficient)
    with torch.no_grad():
        head.weight.copy_(torch.randn(6, generator=generator))
    hidden_ND = torch.randn(3, 6, generator=generator).requires_grad_()
    slopes_N = torch.tensor([1.0, -2.0, 0.5])
    (head(hidden_ND) * slopes_N).sum().backward()
    for tensor, scale in ((head.weight, 1.0), (head.offset, 1.0), (hidden_ND, coefficient)):
        found = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
        with torch.no_grad():
            for place in range(tensor.numel()):
                sides = []
                for move in (1e-2, -2e-2):
                    tensor.view(-1)[place] += move
                    sides.append(float((head(hidden_ND).double() * slopes_N).sum()))
                tensor.view(-1)[place] += 1e-2
                slope = scale * (sides[0] - sides[1]) / 2e-2
                assert float(found.view(-1)[place]) == pytest.approx(slope, rel=2e-2, abs=1e-3)


def test_several_turns_are_one_trajectory_and_context_has_no_value(tmp_path: Path) -> None:
    """Between two sampled tokens stands what the environment said; the reward comes after the last of them."""
    turns = Sample(
        id="t#0",
        task_id="t",
        group_id="t",
        tokens=array_of([1, 2, 3, 4, 9, 9, 5], "i4"),
        loss_mask=array_of([0, 0, 1, 1, 0, 0, 1], "u1"),
        logprobs=array_of([0, 0, -4, -4, 0, 0, -4], "f4"),
        versions=(),
        advantage=8.0,
        reward=8.0,
    )
    metrics = learner(model_folder(tmp_path), settings(gamma=0.5, gae_lambda=1.0)).step([turns]).metrics
    assert metrics["train.return_mean"] == pytest.approx((2 + 4 + 8) / 3)
    assert metrics["train.value_loss"] == pytest.approx((4 + 16 + 64) / 2 / 3)


def test_resumed_run_equals_the_uninterrupted_one_bit_for_bit(tmp_path: Path) -> None:
    """The warm-up is over in neither the first nor the second part."""
    folder = model_folder(tmp_path / "model")
    chosen = settings(coefficient=0.5, warmup_steps=3)
    first, second = learner(folder, chosen), learner(folder, chosen)
    for i in range(2):
        first.step(batch(i))
    (tmp_path / "saved").mkdir()
    first.save(tmp_path / "saved")
    second.step(batch(7))  # whatever it did before is replaced
    second.restore(tmp_path / "saved")
    for i in range(2, 5):
        a, b = first.step(batch(i)).metrics, second.step(batch(i)).metrics
        assert {k: v for k, v in a.items() if not k.endswith("_s")} == {
            k: v for k, v in b.items() if not k.endswith("_s")
        }
    assert state(first, tmp_path / "a") == state(second, tmp_path / "b")


def test_nothing_of_it_is_exported(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    one, plain = learner(folder, settings(coefficient=0.5)), learner(folder)
    one.step(batch())
    assert {name: t.shape for name, t in one.export().items()} == {n: t.shape for n, t in plain.export().items()}
    (tmp_path / "out").mkdir()
    one.export_model(tmp_path / "out")
    assert learner(tmp_path / "out").export().keys() == plain.export().keys()


def test_a_run_may_gain_or_lose_its_critic_and_keeps_the_policy(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    plain, with_critic = learner(folder), learner(folder, settings(warmup_steps=1))
    plain.step(batch())
    weights, _ = state(plain, tmp_path / "plain")
    with_critic.restore(tmp_path / "plain")
    report = with_critic.step(batch(1)).metrics
    assert report["train.lr"] == 0, "a critic that is new warms up, however far the policy is"
    moved, _ = state(with_critic, tmp_path / "with")
    assert moved == weights
    plain.step(batch(1))
    plain.restore(tmp_path / "with")
    assert digest(plain.export()) == weights


def test_a_critic_of_another_width_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    one = learner(model_folder(tmp_path / "model"), settings())
    before = state(one, tmp_path / "saved")
    import safetensors.torch

    from astraflow.learners.checkpoint import write_state
    from astraflow.learners.team import Alone

    tensors = safetensors.torch.load_file(tmp_path / "saved" / "learner.safetensors")
    tensors["critic/master/weight"] = torch.zeros(3)
    write_state(tmp_path / "saved", tensors, steps=0, team=Alone())
    with pytest.raises(WeightsError, match="1 tensors differ, critic/weight"):
        one.restore(tmp_path / "saved")
    del tensors["critic/steps"], tensors["critic/master/weight"]
    write_state(tmp_path / "saved", tensors, steps=0, team=Alone())
    with pytest.raises(WeightsError, match="2 tensors differ, critic/weight"):
        one.restore(tmp_path / "saved")
    assert state(one, tmp_path / "after") == before


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), 1e30])
def test_a_reward_that_is_no_number_or_overflows_leaves_policy_and_critic_as_they_were(
    tmp_path: Path, reward: float
) -> None:
    one: TorchLearner = learner(model_folder(tmp_path / "model"), settings(coefficient=0.5))
    one.step(batch())
    before = state(one, tmp_path / "before")
    report = one.step([*batch(1), sample([1, 2], [3], advantage=reward)])
    assert (report.trained, report.skip_reason) == (False, "nan_loss")
    assert state(one, tmp_path / "after") == before


def test_a_reply_worth_more_than_expected_gets_likelier_in_groups_of_one(tmp_path: Path) -> None:
    """The reward of one group against the critic's expectation, which is made of the other."""
    one = learner(model_folder(tmp_path), settings({"learning_rate": 3e-3}))
    good, bad = sample([1, 2], [3], advantage=1.0, group="a"), sample([1, 2], [4], advantage=0.0, group="b")
    gaps = []
    for _ in range(2):
        model = load_model(tmp_path)
        for name, tensor in one.export().items():
            model.module.get_parameter(name).data.copy_(as_torch(tensor))
        logits = model.module(input_ids=torch.tensor([[1, 2]])).logits[0, -1].detach()
        gaps.append(float(logits[3] - logits[4]))
        for _ in range(4):
            assert one.step([good, bad]).trained
    assert gaps[1] > gaps[0] + 0.1


def test_while_the_critic_warms_up_the_policy_and_its_optimizer_stay_as_they_are(tmp_path: Path) -> None:
    one = learner(model_folder(tmp_path), settings(warmup_steps=2))
    before = digest(one.export())
    for _ in range(2):
        assert one.step(batch(1)).trained
        assert digest(one.export()) == before
        assert {name.partition("/")[0] for name in one._master.tensors()} == {"master"}, "no step of AdamW was counted"
    one.step(batch(1))
    assert digest(one.export()) != before
