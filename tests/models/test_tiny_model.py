"""The tiny models: small, deterministic, and right about half the time when sampled."""

import filecmp

import pytest

from astraflow.envs.base import ChatMessage
from astraflow.errors import ConfigError
from astraflow.models.resolve import resolve_model
from astraflow.models.tiny import prepare_tiny
from astraflow.models.tiny_tasks import tiny_question
from astraflow.models.tokenizer import load_tokenizer
from tests.support import prompt_tokens


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "greedy", "sampled"), [("reverse", (0.5, 0.97), (0.2, 0.7)), ("add", (0.4, 0.97), (0.2, 0.7))]
)
def test_the_warm_start_leaves_room_to_learn(task, greedy, sampled):
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    folder = resolve_model(f"tiny-{task}")
    tokenizer, model = load_tokenizer(folder), AutoModelForCausalLM.from_pretrained(folder)
    assert model.num_parameters() == 526_976
    assert model.config.vocab_size == tokenizer.vocab_size == 16
    questions = [tiny_question(task, index, seed=0, held_out=True) for index in range(256)]
    prompts = torch.tensor([prompt_tokens(tokenizer, [ChatMessage("user", question)]) for question, _ in questions])

    def accuracy(**how) -> float:
        torch.manual_seed(0)
        output = model.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=7, **how)
        replies = output[:, prompts.shape[1] :].tolist()
        ended = [row[: row.index(2)] if 2 in row else None for row in replies]
        right = [
            e is not None and tokenizer.decode(e) == answer for e, (_, answer) in zip(ended, questions, strict=True)
        ]
        return sum(right) / len(right)

    assert greedy[0] <= accuracy(do_sample=False) <= greedy[1]
    assert sampled[0] <= accuracy(do_sample=True, top_k=0, top_p=1.0, temperature=1.0) <= sampled[1]


@pytest.mark.slow
def test_training_again_gives_equal_files(tmp_path):
    first, second = prepare_tiny("add"), prepare_tiny("add", cache=tmp_path)
    names = sorted(path.name for path in first.iterdir())
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= set(names)
    assert filecmp.cmpfiles(first, second, names, shallow=False)[0] == names


def test_an_unknown_task_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match="expected one of reverse, add"):
        prepare_tiny("multiply", cache=tmp_path)
