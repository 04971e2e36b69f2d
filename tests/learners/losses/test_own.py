"""A loss of one's own that fails is told in one sentence with the line of its code, whatever it does."""

import re
from pathlib import Path

import pytest

from astraflow.config import LossSection
from astraflow.errors import ConfigError
from tests.learners.learner_cases import batch, learner, model_folder, section

LOSSES = """\
import torch

def raises(tokens):
    raise ValueError("no such luck")

def leaves(tokens):
    exit(7)

def deeper(tokens):
    return raises(tokens)

def in_torch(tokens):
    return tokens.current_N.reshape(-1, 10_000)

def too_few():
    return 0

def too_many(tokens, bound):
    return tokens.current_N

async def async_loss(tokens):
    return tokens.current_N

def returns_a_coroutine(tokens):
    return async_loss(tokens)

def nothing(tokens):
    -tokens.current_N * tokens.advantages_N

def number(tokens):
    return float(tokens.current_N.sum())

def mean(tokens):
    return tokens.current_N.mean()

def wide(tokens):
    return tokens.current_N[:, None].expand(-1, 2)

def whole(tokens):
    return torch.ones_like(tokens.current_N, dtype=torch.int64)

def detached(tokens):
    return -tokens.log_ratio_N.detach() * tokens.advantages_N

@torch.no_grad()
def without_gradient(tokens):
    return -tokens.current_N * tokens.advantages_N

def in_place(tokens):
    ratio_N = tokens.log_ratio_N.exp()
    loss_N = -ratio_N * ratio_N
    ratio_N.mul_(2)
    return loss_N

class Loss:
    pass

constant = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_losses.py").write_text(LOSSES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return model_folder(tmp_path)


def _line(marker: str) -> int:
    return 1 + LOSSES.splitlines().index(marker)


@pytest.mark.parametrize(
    ("name", "told", "line"),
    [
        ("raises", "failed: ValueError: no such luck", '    raise ValueError("no such luck")'),
        ("leaves", "failed: SystemExit: 7", "    exit(7)"),
        ("deeper", "failed: ValueError: no such luck", '    raise ValueError("no such luck")'),
        ("in_torch", "failed: RuntimeError: shape", "    return tokens.current_N.reshape(-1, 10_000)"),
        ("too_few", "is called with one value, but too many positional arguments", "def too_few():"),
        (
            "too_many",
            "is called with one value, but missing a required argument: 'bound'",
            "def too_many(tokens, bound):",
        ),
        ("async_loss", "is async, and nobody awaits it; make it a def", "async def async_loss(tokens):"),
        ("returns_a_coroutine", "is async, and nobody awaits it", "def returns_a_coroutine(tokens):"),
        ("nothing", "returned nothing, expected the loss of each", "def nothing(tokens):"),
        ("number", "returned a float, expected the loss of each", "def number(tokens):"),
        ("mean", "returned (), expected the loss of each", "def mean(tokens):"),
        ("wide", "2), expected the loss of each", "def wide(tokens):"),
        ("whole", "returned torch.int64 on cpu, expected torch.float32 on cpu", "def whole(tokens):"),
        ("detached", "returned a loss without a gradient", "def detached(tokens):"),
        ("without_gradient", "returned a loss without a gradient", "@torch.no_grad()"),
        ("in_place", "has no gradient: one of the variables needed", "def in_place(tokens):"),
    ],
)
def test_a_loss_that_fails_is_one_sentence_with_its_line(folder: Path, name: str, told: str, line: str) -> None:
    chosen = section(loss=LossSection(objective=f"own_losses:{name}"))
    with pytest.raises(ConfigError) as caught:
        learner(folder, chosen).step(batch(1))
    text = str(caught.value)
    assert text.startswith(f"loss.objective own_losses:{name} ")
    assert told in text
    assert "\n" not in text
    assert re.findall(r"\(own_losses\.py line (\d+)\)", text) == [str(_line(line))]


@pytest.mark.parametrize("name", ["Loss", "constant"])
def test_what_is_no_function_is_no_loss(folder: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"own_losses:{name} is a .*, expected a function"):
        learner(folder, section(loss=LossSection(objective=f"own_losses:{name}")))
