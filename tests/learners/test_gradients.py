"""Loss and gradients equal a plain one-sample-at-a-time computation, whatever the plan."""

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import torch
import transformers

from astraflow.config import LossSection
from astraflow.errors import MessageError
from astraflow.learners.batch import Batch, read_batch
from astraflow.learners.gradients import Backward, accumulate_gradients
from astraflow.learners.losses.compose import Loss
from astraflow.learners.losses.tokens import LossBatch
from astraflow.learners.model import SHARED_PREFIX_FAMILIES, LoadedModel, load_model
from astraflow.learners.packing import Costs, MicroBatch, plan_micro_batches
from astraflow.learners.team import Alone
from astraflow.learners.torch_learner import temperature_of
from astraflow.messages import Sample, TemperatureSpan, array_of
from tests.learners.learner_cases import batch, model_folder, sample

DEFAULTS = LossSection()
CASES = [
    *((family, tied, share) for family in sorted(SHARED_PREFIX_FAMILIES) for tied in (0, 1) for share in (0, 1)),
    ("gpt2", 1, 0),
]


def reference(
    folder: Path, samples: Sequence[Sample], *, temperature: float | None
) -> tuple[float, dict[str, torch.Tensor]]:
    """The clipped loss as one would write it down, through transformers' own logits. None: at each sample's own."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()
    objective, count = torch.zeros(()), 0
    for one in samples:
        tokens_T = torch.tensor(one.tokens.numpy().astype("int64"))
        mask_T = torch.tensor(one.loss_mask.numpy().astype(bool))
        logits = model(input_ids=tokens_T[None]).logits[0, :-1]
        divisors = torch.full((len(logits), 1), temperature or 1.0)
        for span in one.temperatures if temperature is None else ():
            divisors[span.start - 1 : span.end - 1] = span.temperature
        logits = logits / divisors
        logprobs = logits.log_softmax(-1).gather(1, tokens_T[1:, None]).squeeze(1)[mask_T[1:]]
        ratio = (logprobs - torch.tensor(one.logprobs.numpy().copy())[mask_T]).exp()
        objective = objective + torch.minimum(ratio * one.advantage, ratio.clamp(0.8, 1.28) * one.advantage).sum()
        count += int(mask_T.sum())
    loss = -objective / count
    loss.backward()
    return float(loss.detach()), {name: p.grad for name, p in model.named_parameters()}


def gradients_of(
    model: LoadedModel,
    plan: Sequence[MicroBatch],
    read: Batch,
    *,
    loss: LossSection = DEFAULTS,
    temperature: float | torch.Tensor = 1.0,
) -> Backward:
    """What the learner does in a step's only update."""
    one = Loss(loss)
    prepared = one.prepare(
        LossBatch(
            behaviour_M=torch.from_numpy(read.behaviour_M),
            advantages_M=torch.from_numpy(read.advantages_M),
            sequence_M=torch.from_numpy(read.sequence_M),
            task_S=torch.from_numpy(read.tasks_S),
        )
    )
    weights = one.weigh(prepared, chosen_S=torch.ones(len(read.tasks_S), dtype=torch.bool))
    return accumulate_gradients(model, plan, one, prepared, weights, temperature=temperature, team=Alone())


def ours(
    folder: Path,
    samples: Sequence[Sample],
    *,
    budget: int,
    share: bool,
    temperature: float | torch.Tensor = 1.0,
    per_pass: float = 8.0,
) -> tuple[float, dict[str, torch.Tensor], int]:
    model = load_model(folder)
    read = read_batch(samples, vocabulary=model.vocabulary)
    costs = Costs(attention=model.attention_cost, micro_batch=per_pass)
    plan = plan_micro_batches(read.items, budget_tokens=budget, costs=costs, share_prefixes=share)
    result = gradients_of(model, plan, read, temperature=temperature)
    gradients = {name: p.grad for name, p in model.module.named_parameters() if p.grad is not None}
    return result.loss, gradients, len(plan)


def assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    largest = max(float(g.abs().max()) for g in expected.values())
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6 * largest)


@pytest.mark.parametrize(("family", "tied", "share"), CASES)
@pytest.mark.parametrize("budget", [16, 64, 4096])
def test_every_plan_gives_the_plain_gradient(tmp_path: Path, family: str, tied: int, share: int, budget: int) -> None:
    assert load_model(model_folder(tmp_path, family)).shares_prefixes == (family in SHARED_PREFIX_FAMILIES)
    folder = model_folder(tmp_path, family, tie_word_embeddings=bool(tied))
    loss, expected = reference(folder, batch(), temperature=1.0)
    found_loss, found, passes = ours(folder, batch(), budget=budget, share=bool(share))
    assert found_loss == pytest.approx(loss, abs=1e-6)
    assert passes > 1 or budget > 16
    assert_equal(found, expected)


def test_one_pass_and_one_pass_per_sample_agree(tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    _, together, one = ours(folder, batch(), budget=4096, share=False, per_pass=1e9)
    _, alone, many = ours(folder, batch(), budget=1, share=False)
    assert (one, many) == (1, 10)  # of 12 samples one has no tokens and one no advantage
    assert_equal(alone, together)


def test_many_blocks_of_logits_give_the_gradient_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model_folder(tmp_path)
    _, one_block, _ = ours(folder, batch(), budget=4096, share=False)
    monkeypatch.setattr("astraflow.learners.logprobs.LOGIT_BLOCK_BYTES", 3 * 4 * 64)  # three rows
    for kept in (1 << 20, 0):
        monkeypatch.setattr("astraflow.learners.logprobs.KEPT_LOGIT_BYTES", kept)
        _, blocks, _ = ours(folder, batch(), budget=4096, share=False)
        assert_equal(blocks, one_block)


def test_logprobs_are_of_the_temperature_that_was_sampled_at(tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    loss, expected = reference(folder, batch(), temperature=0.7)
    found_loss, found, _ = ours(folder, batch(), budget=64, share=True, temperature=0.7)
    assert found_loss == pytest.approx(loss, abs=1e-6)
    assert_equal(found, expected)


def several_temperatures() -> list[Sample]:
    """The batch, each half of each completion at its own temperature."""
    samples = []
    for i, one in enumerate(batch()):
        start, end = int(one.loss_mask.numpy().argmin() + (one.loss_mask.numpy() == 0).sum()), one.tokens.shape[0]
        middle = (start + end) // 2
        spans = ((0.4 + 0.1 * i, start, middle), (1.5, middle, end))
        temperatures = tuple(TemperatureSpan(temperature=t, start=s, end=e) for t, s, e in spans if e > s)
        samples.append(msgspec.structs.replace(one, temperatures=temperatures))
    return samples


@pytest.mark.parametrize("budget", [16, 4096])
@pytest.mark.parametrize("share", [False, True])
def test_each_token_has_its_own_temperature(tmp_path: Path, budget: int, share: bool) -> None:
    folder, samples = model_folder(tmp_path), several_temperatures()
    loss, expected = reference(folder, samples, temperature=None)
    read = read_batch(samples, vocabulary=64)
    found_loss, found, _ = ours(folder, samples, budget=budget, share=share, temperature=temperature_of(read))
    assert found_loss == pytest.approx(loss, abs=1e-6)
    assert_equal(found, expected)


@pytest.mark.parametrize("span", [(0.5, 0, 99), (0.5, -1, 2), (0.5, 3, 2), (math.nan, 0, 1), (-1.0, 0, 1)])
def test_a_temperature_span_that_does_not_fit_is_refused(span: tuple[float, int, int]) -> None:
    temperature, start, end = span
    wrong = msgspec.structs.replace(
        sample([1, 2], [3]), temperatures=(TemperatureSpan(temperature=temperature, start=start, end=end),)
    )
    with pytest.raises(MessageError, match="temperature span"):
        read_batch([wrong], vocabulary=64)


def test_turns_after_the_first_are_masked_and_packed(tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    prompt = [1, 2, 3]
    samples = [sample(prompt, [4, 5, 6 + m, 7, 8], member=m, advantage=1.0 - m) for m in range(3)]
    turns = array_of([0, 0, 0, 1, 0, 0, 1, 1], "u1")  # a sampled token, an observation of two, two sampled tokens
    masked = [msgspec.structs.replace(one, loss_mask=turns) for one in samples]
    loss, expected = reference(folder, masked, temperature=1.0)
    found_loss, found, _ = ours(folder, masked, budget=4096, share=True)
    assert found_loss == pytest.approx(loss, abs=1e-6)
    assert_equal(found, expected)


def test_few_long_samples_weigh_as_their_tokens(tmp_path: Path) -> None:
    """Ranks or micro-batches with 10 and 1,000 tokens: the gradient of the whole is that of one pass."""
    folder = model_folder(tmp_path, max_position_embeddings=1024)
    long = [sample([1, 2], [3 + i % 50 for i in range(500)], member=m, group="long") for m in range(2)]
    short = [sample([5], [6, 7], member=m, group="short", advantage=-1.0) for m in range(5)]
    loss, expected = reference(folder, long + short, temperature=1.0)
    found_loss, found, passes = ours(folder, long + short, budget=600, share=False, per_pass=1.0)
    assert passes > 1
    assert found_loss == pytest.approx(loss, rel=1e-5)
    assert_equal(found, expected)


def test_gradient_equals_finite_differences(tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    model = load_model(folder)
    model.module.double()
    read = read_batch(batch(), vocabulary=model.vocabulary)
    plan = plan_micro_batches(read.items, budget_tokens=64, costs=Costs(), share_prefixes=False)
    weights = dict(model.module.named_parameters())

    def loss() -> float:
        return gradients_of(model, plan, read, loss=LossSection(clip_low=0.9, clip_high=1e3)).loss

    model.module.zero_grad()
    loss()
    gradients = {name: w.grad.clone() for name, w in weights.items() if w.grad is not None}
    rng = torch.Generator().manual_seed(1)
    step = 1e-3  # norms and logits are computed in fp32: smaller steps drown in rounding
    for name in ("model.embed_tokens.weight", "model.layers.1.self_attn.v_proj.weight", "model.norm.weight"):
        weight, origin = weights[name].data, weights[name].data.clone()
        direction = torch.nn.functional.normalize(torch.randn(weight.shape, generator=rng).flatten(), dim=0)
        direction = direction.view(weight.shape).double()
        losses = []
        for sign in (1, -1):
            weight.copy_(origin + sign * step * direction)
            losses.append(loss())
        weight.copy_(origin)
        slope = float((gradients[name] * direction).sum())
        assert (losses[0] - losses[1]) / (2 * step) == pytest.approx(slope, rel=1e-2, abs=1e-4)
