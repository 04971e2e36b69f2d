"""A small run file, and what reading one says."""

from pathlib import Path

import pytest

from astraflow.config import RunConfig
from astraflow.errors import ConfigError
from astraflow.runfile import load

TOY = """\
[run]
name = "demo"

[policies.solver]
model = "toy"
engine = { kind = "toy" }

[policies.solver.trainer]
steps = 4
learner = "toy"

[envs.game]
kind = "toy"

[sources.game]
env = "game"
group_size = 4

[eval.held-out]
env = "game"
size = 8
"""


def load_light(path: str | Path, *overrides: str) -> RunConfig:
    return load(path, overrides, environments=False)


def error_of(path: Path, *overrides: str, environments: bool = False) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, overrides, environments=environments)
    return str(caught.value)


def mistakes_in(error: str) -> list[str]:
    """The sentences of an error: one by itself, or several under a headline."""
    headline, *told = error.split("\n  ")
    assert not told or headline.startswith(f"{len(told)} mistakes in ")
    assert all("\n" not in each for each in told or [headline])
    return told or [headline]


def error_in(file: Path, text: str, *, environments: bool = False) -> str:
    file.write_text(text)
    return error_of(file, environments=environments)
