"""`check` warns where an environment finds answers by tokens that replies don't show."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from astraflow.config import RunConfig
from astraflow.models.tokenizer import load_tokenizer
from astraflow.runfile import load, unseen_answers
from tests.models import shapes

RUN = """\
[run]
name = "demo"

[policies.solver]
model = "{model}"
engine = {{ kind = "cpu" }}

[envs.sums]
kind = "reasoning-gym"
args = {{ dataset = "chain_sum" }}

[eval.sums]
env = "sums"
size = 4
"""


def loaded(folder: Path, *overrides: str, special: bool = True) -> RunConfig:
    made = shapes.byte_level()
    (made.add_special_tokens if special else made.add_tokens)(["<answer>", "</answer>"])
    shapes.write(folder, made, {**shapes.ANY, **shapes.CHAT}, {"model_type": "llama"})
    save_file({"weight": np.zeros(4, np.float32)}, folder / "model.safetensors")
    file = folder / "run.toml"
    file.write_text(RUN.format(model=folder))
    return load(file, overrides, environments=False)


@pytest.mark.parametrize(
    ("overrides", "special", "said"),
    [
        ((), True, ""),
        (("policies.solver.shown_tokens=[]",), True, "<answer> and </answer>"),
        (('policies.solver.shown_tokens=["<answer>"]',), True, "by </answer>,"),
        (("policies.solver.shown_tokens=[]",), False, ""),
        (("policies.solver.shown_tokens=[]", "envs.sums.args.answer=last-number"), True, ""),
    ],
)
def test_tokens_that_an_answer_needs_and_that_replies_leave_out_are_named(tmp_path, overrides, special, said):
    warnings = list(unseen_answers(loaded(tmp_path, *overrides, special=special)))
    assert len(warnings) == bool(said)
    assert all(said in warning and "policies.solver.shown_tokens" in warning for warning in warnings)


def test_shown_tokens_stay_in_text_and_other_special_tokens_go(tmp_path):
    loaded(tmp_path)
    text = "<answer>42</answer><|im_end|>"
    for shown, seen in (((), "42"), (("<answer>",), "<answer>42"), (("<answer>", "</answer>"), text[:-10])):
        tokenizer = load_tokenizer(tmp_path, shown=shown)
        assert tokenizer.decode(tokenizer.encode(text)) == seen
    assert load_tokenizer(tmp_path).decode(load_tokenizer(tmp_path).encode(text)) == text[:-10]
