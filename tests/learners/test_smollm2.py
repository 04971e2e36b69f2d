"""The real model: bf16 where it is fast, shared prompts, a dithered master that moves from the first step."""

from pathlib import Path

import pytest
import torch
import transformers

from astraflow.compute import compute_dtype
from astraflow.learners.torch_learner import TorchLearner
from astraflow.messages import Sample
from astraflow.models.smollm2 import prepare_smollm2
from tests.learners.learner_cases import learner, sample, section

pytestmark = [pytest.mark.smol, pytest.mark.slow, pytest.mark.timeout(600)]

SUMS = [(2, 3), (4, 5)]


def load(folder: Path) -> transformers.PreTrainedModel:
    """In the dtype that engine and learner use here: an engine's rounding must not look like another policy."""
    dtype = compute_dtype("auto")
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True).eval()


def logprobs(model: transformers.PreTrainedModel, tokens: list[int], completion: int) -> list[float]:
    """What an engine would report for the last `completion` tokens."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([tokens])).logits[0, :-1].float()
    chosen = logits.log_softmax(-1).gather(1, torch.tensor(tokens[1:])[:, None]).squeeze(1)
    return chosen[-completion:].tolist()


def group_of(folder: Path, model: transformers.PreTrainedModel, a: int, b: int) -> list[Sample]:
    """One right answer and three wrong ones to a sum."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    turns = [
        {"role": "system", "content": "Reply with a number only."},
        {"role": "user", "content": f"What is {a} + {b}?"},
    ]
    text = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    prompt = tokenizer(text, add_special_tokens=False).input_ids
    samples = []
    for member, answer in enumerate((a + b, a, b, 1)):
        completion = tokenizer(f"{answer}<|im_end|>", add_special_tokens=False).input_ids
        behaviour = logprobs(model, prompt + completion, len(completion))
        advantage = 1.5 if member == 0 else -0.5
        samples.append(
            sample(prompt, completion, advantage=advantage, group=f"{a}+{b}", member=member, behaviour=behaviour)
        )
    return samples


def test_a_few_steps_teach_a_sum_and_sharing_prompts_changes_nothing(tmp_path: Path) -> None:
    folder = prepare_smollm2()
    engine = load(folder)
    samples = [one for a, b in SUMS for one in group_of(folder, engine, a, b)]
    settings = section(dtype="auto", learning_rate=1e-5, micro_batch_tokens=1024)
    shared: TorchLearner = learner(folder, settings)
    first = shared.step(samples).metrics
    plain = learner(folder, settings, share=False).step(samples).metrics
    assert first["train.computed_tokens"] < 0.5 * plain["train.computed_tokens"]
    assert first["train.mismatch"] < 0.3  # bf16 noise: about 0.1 for such unlikely tokens
    assert first["train.loss"] == pytest.approx(plain["train.loss"], abs=0.05)
    assert first["train.grad_norm"] == pytest.approx(plain["train.grad_norm"], rel=0.1)
    for _ in range(3):
        shared.step(samples)
    shared.export_model(tmp_path)
    trained = load(tmp_path)
    for right in (samples[0], samples[4]):
        tokens, count = right.tokens.numpy().tolist(), int(right.loss_mask.numpy().sum())
        assert sum(logprobs(trained, tokens, count)) > float(right.logprobs.numpy().sum()) + 0.3
