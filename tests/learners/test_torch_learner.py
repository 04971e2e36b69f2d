"""The learner's contract: skipped steps leave no trace, resumes are bit-equal, steps teach."""

import math
from pathlib import Path

import msgspec
import pytest
import torch
import transformers

from astraflow.config import LossSection
from astraflow.errors import MessageError
from astraflow.learners.torch_learner import TorchLearner
from astraflow.messages import Sample, TemperatureSpan, array_of
from tests.learners.learner_cases import (
    DTYPES,
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


@pytest.mark.parametrize(("dtype", "kept"), DTYPES)
@pytest.mark.parametrize("bad", ["logprob", "advantage"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_number_that_is_none_skips_the_step_without_a_trace(
    tmp_path: Path, dtype: str, kept: torch.dtype, bad: str, value: float
) -> None:
    one = learner(model_folder(tmp_path / "model", dtype=kept), section(dtype=dtype))
    one.step(batch(1))
    before = state(one, tmp_path / "before")
    samples = batch(2)
    poisoned = (
        sample([1, 2], [3, 4], behaviour=[-1.0, value]) if bad == "logprob" else sample([1, 2], [3, 4], advantage=value)
    )
    report = one.step([*samples, poisoned])
    assert (report.trained, report.skip_reason) == (False, "nan_loss")
    assert state(one, tmp_path / "after") == before


def test_gradient_that_overflows_skips_the_step_without_a_trace(tmp_path: Path) -> None:
    one, twin = (learner(model_folder(tmp_path / name)) for name in ("a", "b"))
    before = state(one, tmp_path / "before")
    huge = sample([1, 2], [3], advantage=2e38, behaviour=[0.0])  # the loss is finite, its gradient is not
    report = one.step([huge])
    assert (report.trained, report.skip_reason) == (False, "nan_gradient")
    assert math.isfinite(report.metrics["train.loss"])
    assert state(one, tmp_path / "after") == before
    one.step(batch(3))
    twin.step(batch(3))
    assert digest(one.export()) == digest(twin.export())


def test_weight_that_is_nan_skips_in_the_middle_of_a_batch(tmp_path: Path) -> None:
    """The loss turns NaN in the second micro-batch; the gradient of the first is dropped as well."""
    folder = model_folder(tmp_path / "model")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.model.embed_tokens.weight[63] = math.nan
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(torch.randn(VOCABULARY, 32, generator=torch.Generator().manual_seed(0)))
    model.save_pretrained(folder)
    one = learner(folder, section(micro_batch_tokens=16))
    before = state(one, tmp_path / "before")
    report = one.step([sample([1] * 12, [2, 3, 4], group="a"), sample([63], [5], group="b")])
    assert (report.trained, report.skip_reason) == (False, "nan_loss")
    assert state(one, tmp_path / "after")[1] == before[1]


@pytest.mark.parametrize("samples", [[], [sample([1, 2, 3], [])]])
def test_batch_without_sampled_tokens_is_skipped(tmp_path: Path, samples: list[Sample]) -> None:
    report = learner(model_folder(tmp_path)).step(samples)
    assert (report.trained, report.skip_reason) == (False, "no_tokens")


def test_sample_without_sampled_tokens_changes_nothing(tmp_path: Path) -> None:
    one, other = (learner(model_folder(tmp_path / name)) for name in "ab")
    samples = [sample([1, 2], [3, 4]), sample([1, 2], [5], advantage=-1.0, member=1)]
    one.step(samples)
    other.step([*samples, sample([1, 2, 3], [], member=2)])
    assert digest(one.export()) == digest(other.export())


def test_samples_without_advantage_are_not_computed_but_stay_in_the_denominator(tmp_path: Path) -> None:
    useful = [sample([1, 2], [3, 4]), sample([1, 2], [5, 6], advantage=-1.0, member=1)]
    flat = [sample([9, 8], [7, 6, 5, 4], advantage=0.0, group=f"flat{i}") for i in range(7)]
    alone = learner(model_folder(tmp_path / "a"), section(learning_rate=0.0)).step(useful).metrics
    mixed = learner(model_folder(tmp_path / "b"), section(learning_rate=0.0)).step(useful + flat).metrics
    assert (alone["train.tokens"], mixed["train.tokens"]) == (4, 4 + 7 * 4)
    assert mixed["train.computed_tokens"] == alone["train.computed_tokens"]
    assert mixed["train.skipped_samples"] == 7
    assert mixed["train.grad_norm"] == pytest.approx(alone["train.grad_norm"] / 8)
    assert mixed["train.loss"] == pytest.approx(alone["train.loss"] / 8)


def test_batch_without_any_advantage_is_a_step_with_gradient_zero(tmp_path: Path) -> None:
    one = learner(model_folder(tmp_path))
    before = digest(one.export())
    report = one.step([sample([1, 2], [3], advantage=0.0)])
    assert report.trained
    assert (report.metrics["train.loss"], report.metrics["train.grad_norm"]) == (0.0, 0.0)
    assert "train.mismatch" not in report.metrics
    assert digest(one.export()) == before  # no momentum yet


@pytest.mark.parametrize(("dtype", "kept"), DTYPES)
def test_learning_rate_zero_keeps_weights_and_mismatch_for_fifty_steps(
    tmp_path: Path, dtype: str, kept: torch.dtype
) -> None:
    one = learner(model_folder(tmp_path, dtype=kept), section(dtype=dtype, learning_rate=0.0))
    before = digest(one.export())
    mismatches = {one.step(batch(4)).metrics["train.mismatch"] for _ in range(50)}
    assert digest(one.export()) == before
    assert len(mismatches) == 1


def test_engine_with_the_same_weights_has_no_mismatch(tmp_path: Path) -> None:
    """Ratios are 1 on-policy, in whatever micro-batches."""
    folder = model_folder(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    samples = []
    for one in batch(5):
        tokens, mask = torch.tensor(one.tokens.numpy().astype("int64")), one.loss_mask.numpy().astype(bool)
        with torch.no_grad():
            logprobs = model(input_ids=tokens[None]).logits[0, :-1].log_softmax(-1).gather(1, tokens[1:, None])
        behaviour = torch.cat([torch.zeros(1), logprobs.squeeze(1)]).numpy() * mask
        samples.append(msgspec.structs.replace(one, logprobs=array_of(behaviour, "f4")))
    for budget in (16, 50, 4096):
        settings = section(micro_batch_tokens=budget, learning_rate=0.0)
        metrics = learner(folder, settings).step(samples).metrics
        assert metrics["train.mismatch_max"] < 1e-5
        assert metrics["train.mean_ratio"] == pytest.approx(1.0, abs=1e-5)
        assert metrics["train.clip_fraction"] == 0.0
        assert metrics["train.approx_kl"] == pytest.approx(0.0, abs=1e-6)


def test_warm_up_is_linear_and_counts_trained_steps_only(tmp_path: Path) -> None:
    one = learner(model_folder(tmp_path), section(learning_rate=1e-3, warmup_steps=4))
    rates = []
    for i in range(6):
        if i == 2:
            assert not one.step([]).trained
        rates.append(one.step(batch(i)).metrics["train.lr"])
    assert rates == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3, 1e-3])


@pytest.mark.parametrize(
    "change",
    [
        {"learning_rate": 2e-3},
        {"weight_decay": 0.5},
        {"max_grad_norm": 1e-9},  # AdamW forgives scale, but not below its epsilon
        {"loss": LossSection(clip_low=0.9, clip_high=9.0)},
        {"beta1": 0.5},
        {"beta2": 0.5},
        {"warmup_steps": 5},
        {"schedule": "linear", "steps": 2},
        {"schedule": "cosine", "steps": 2},
    ],
    ids=str,
)
def test_every_knob_matters(tmp_path: Path, change: dict) -> None:
    folder = model_folder(tmp_path)
    one, other = learner(folder), learner(folder, section(**change))
    for i in range(2):
        one.step(batch(i))
        other.step(batch(i))
    assert digest(one.export()) != digest(other.export())


def test_weight_decay_leaves_norms_alone(tmp_path: Path) -> None:
    one = learner(model_folder(tmp_path), section(weight_decay=0.5))
    before = {name: as_torch(tensor) for name, tensor in one.export().items()}
    one.step([sample([1, 2], [3], advantage=0.0)])  # no gradient: only decay moves
    for name, tensor in one.export().items():
        assert torch.equal(as_torch(tensor), before[name]) == ("norm" in name), name


@pytest.mark.parametrize(("dtype", "kept"), DTYPES)
def test_steps_raise_the_probability_of_what_was_rewarded(tmp_path: Path, dtype: str, kept: torch.dtype) -> None:
    one = learner(model_folder(tmp_path / "model", dtype=kept), section(dtype=dtype, learning_rate=3e-3))
    prompt, good = [1, 2, 3], 7
    (tmp_path / "out").mkdir()
    chances = []
    for _ in range(12):
        one.export_model(tmp_path / "out")
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
        with torch.no_grad():
            logprobs = model(input_ids=torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
        chances.append(float(logprobs[good].exp()))
        one.step(
            [
                sample(prompt, [token], member=m, advantage=a, behaviour=[float(logprobs[token])])
                for m, (token, a) in enumerate([(good, 1.5), (8, -0.5), (9, -0.5), (10, -0.5)])
            ]
        )
    assert chances[-1] > 4 * chances[0]


def test_rotary_frequencies_stay_in_fp32(tmp_path: Path) -> None:
    """A model that is cast as a whole loses them, and its logprobs drift from the engine's."""
    folder = model_folder(tmp_path / "model", max_position_embeddings=512)
    full = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    one = learner(folder, section(dtype="bf16", learning_rate=0.0))
    tokens = torch.arange(300)[None] % VOCABULARY  # long rows: the same attention kernel, so the same bits
    with torch.no_grad():
        logprobs = full(input_ids=tokens).logits.float()[0, :-1].log_softmax(-1).gather(1, tokens[0, 1:, None])
    completion = tokens[0, 1:].tolist()
    metrics = one.step([sample([0], completion, behaviour=logprobs.squeeze(1).tolist())]).metrics
    assert metrics["train.mismatch_max"] < 1e-6


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"tokens": array_of([1, 2, VOCABULARY], "i4")}, "outside 0..63"),
        ({"tokens": array_of([1, -1, 2], "i4")}, "outside 0..63"),
        ({"logprobs": array_of([0.0, -1.0], "f4")}, "three equal lengths"),
        ({"loss_mask": array_of([1, 0, 1], "u1")}, "empty prompt"),
    ],
)
def test_sample_that_does_not_fit_is_named(tmp_path: Path, change: dict, text: str) -> None:
    one = learner(model_folder(tmp_path / "model"))
    before = state(one, tmp_path / "before")
    bad = msgspec.structs.replace(sample([1, 2], [3]), **change)
    with pytest.raises(MessageError, match=text):
        one.step([sample([1, 2], [3]), bad])
    assert state(one, tmp_path / "after") == before


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_layers_computed_anew_have_the_same_gradients_to_the_last_bit(tmp_path: Path, dtype: str) -> None:
    folder = model_folder(tmp_path / "model")
    kept, anew = (learner(folder, section(dtype=dtype, activation_checkpointing=chosen)) for chosen in (False, True))
    passes = []
    for one in (kept, anew):
        module = next(each for name, each in one._model.module.named_modules() if name.endswith("layers.0.mlp"))
        calls: list[int] = []
        module.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        assert one.step(batch()).trained
        passes.append(len(calls))
    assert passes[1] == 2 * passes[0]
    assert digest(kept.export()) == digest(anew.export())


def test_samples_that_say_nothing_were_sampled_at_the_runs_temperature(tmp_path: Path) -> None:
    folder, samples = model_folder(tmp_path), batch()
    said = [
        msgspec.structs.replace(one, temperatures=(TemperatureSpan(temperature=0.5, start=0, end=one.tokens.shape[0]),))
        for one in samples
    ]
    found = []
    for temperature, given in ((0.5, samples), (1.0, said), (1.0, samples)):
        one = TorchLearner(folder, section(), seed=0, threads=1, temperature=temperature)
        one.step(given)
        found.append(digest(one.export()))
    assert found[0] == found[1] != found[2]
