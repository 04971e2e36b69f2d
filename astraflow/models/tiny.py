"""Tiny character-level Llamas (0.5 M parameters) that a few seconds of supervised training bring off the ground.

They exist so that a real policy gradient can be seen to learn in under a minute on one core: from a warm start that is
right about half the time. Not useful for anything else. Invariant: equal (task, seed) give equal weights on the same
machine and torch build, for the training runs in one thread of a child process.
"""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from astraflow.errors import ConfigError
from astraflow.extras import install_hint
from astraflow.models.cache import built_folder, run_builder
from astraflow.models.tiny_tasks import CHARACTERS, TINY_TASKS, TinyTask, tiny_question
from astraflow.named import did_you_mean

_SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>")
_CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
)  # the user's content is the raw prompt
_RECIPE = "tiny 2"  # raise it when the result of `train` changes
_STEPS = {"reverse": 80, "add": 60}
_BATCH = 64
_CONTEXT = 64


def prepare_tiny(task: TinyTask, seed: int = 0, cache: Path | None = None) -> Path:
    """The folder of a tiny model with a warm start on `task`, training it first if need be. Blocking, a few seconds.

    Raises: ConfigError for an unknown task, or if torch or transformers is missing.
    """
    if task not in TINY_TASKS:
        raise ConfigError(
            f"tiny task is {task!r}, expected one of {', '.join(TINY_TASKS)}{did_you_mean(str(task), TINY_TASKS)}"
        )
    missing = [name for name in ("torch", "transformers", "tokenizers") if not importlib.util.find_spec(name)]
    if missing:
        raise ConfigError(f"the model tiny-{task} needs {', '.join(missing)}; run: {install_hint('train')}")
    return built_folder(
        f"tiny-{task}-{seed}",
        recipe=f"{_RECIPE} {task} {seed}",
        cache=cache,
        build=lambda folder: run_builder("astraflow.models.tiny", task, str(seed), str(folder)),
    )


def train(task: TinyTask, seed: int, folder: Path) -> None:
    """Build, train and save model and tokenizer into `folder`. Imports torch and sets its threads and seed."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # of this child process: nothing is to be looked up
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    tokenizer = _tokenizer()
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=512,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=_CONTEXT,
            tie_word_embeddings=True,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, betas=(0.9, 0.95))
    for step in range(_STEPS[task]):
        pairs = [tiny_question(task, step * _BATCH + k, seed=seed, held_out=False) for k in range(_BATCH)]
        tokens_BT, labels_BT = _batch(tokenizer, pairs)
        model(input_ids=torch.tensor(tokens_BT), labels=torch.tensor(labels_BT)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _batch(tokenizer: Any, pairs: list[tuple[str, str]]) -> tuple[list[list[int]], list[list[int]]]:
    """Tokens and labels, padded on the right; only the answer and its <eos> are learned (label -100 elsewhere)."""
    tokens_BT, labels_BT = [], []
    for question, answer in pairs:
        prompt = tokenizer.encode(tokenizer.bos_token + question, add_special_tokens=False)
        target = tokenizer.encode(answer + tokenizer.eos_token, add_special_tokens=False)
        tokens_BT.append(prompt + target)
        labels_BT.append([-100] * len(prompt) + target)
    width = max(map(len, tokens_BT))
    pad = tokenizer.pad_token_id
    return (
        [row + [pad] * (width - len(row)) for row in tokens_BT],
        [row + [-100] * (width - len(row)) for row in labels_BT],
    )


def _tokenizer() -> Any:
    """One token per character; sixteen in all."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: number for number, token in enumerate((*_SPECIAL_TOKENS, *CHARACTERS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    pad, bos, eos, unk = _SPECIAL_TOKENS
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=pad, bos_token=bos, eos_token=eos, unk_token=unk, padding_side="left"
    )
    wrapped.chat_template = _CHAT_TEMPLATE
    return wrapped


if __name__ == "__main__":
    _, task_name, seed_text, folder_name = sys.argv
    train("add" if task_name == "add" else "reverse", int(seed_text), Path(folder_name))
