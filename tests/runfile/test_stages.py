"""Data algorithms in the run file: what is wrong with them is said with its key, what is right in a sentence."""

from pathlib import Path

import pytest

from astraflow.config import RunConfig
from astraflow.errors import ConfigError
from astraflow.runfile import load, pipeline, resolved

RUN = """\
[run]
name = "demo"

[policies.solver]
model = "toy"
engine = { kind = "toy" }

[policies.solver.trainer]
steps = 4
learner = "toy"
max_staleness = 2

[envs.game]
kind = "toy"

[sources.game]
env = "game"
size = 100
"""


def loaded(folder: Path, *overrides: str, environments: bool = False) -> RunConfig:
    file = folder / "run.toml"
    file.write_text(RUN)
    return load(file, overrides, environments=environments)


SELECT = "sources.game.select"
TRAINER = "policies.solver.trainer"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([f"{SELECT}.kind=gresso"], f"{SELECT} in --set .*unknown selector kind 'gresso'; did you mean 'greso'"),
        ([f"{SELECT}.kind=greso", f"{SELECT}.args={{tagret = 0.2}}"], "no argument 'tagret'; did you mean 'target'"),
        ([f"{SELECT}.kind=greso", f"{SELECT}.args={{target = 2}}"], "target is 2, expected a number from 0 to 1"),
        ([f"{SELECT}.kind=levels"], "needs args.levels"),
        ([f"{SELECT}.kind=json:JSONDecoder"], "selector json:JSONDecoder has no method take, observe"),
        ([f"{SELECT}.args=3"], "expected a table, got 3"),
        (["dataflow.order=efd"], "unknown order kind 'efd'; did you mean 'edf'"),
        ([f"{TRAINER}.filters=['no_such_module:F']"], "there is no module"),
        ([f"{TRAINER}.filter_args={{truncated = {{}}}}"], "truncated isn't among filters"),
        ([f"{TRAINER}.filter_args={{zero-advantage = 3}}"], "expected a table of arguments, got 3"),
        ([f"{TRAINER}.replay.kind=unifrom"], "did you mean 'uniform'"),
        ([f"{TRAINER}.replay.kind=uniform", f"{TRAINER}.replay.share=0.1"], "less than one group"),
        ([f"{TRAINER}.replay.kind=uniform", f"{TRAINER}.max_staleness=0"], "nothing could be replayed"),
        (["run.deterministic=true", f"{TRAINER}.max_staleness=0", "sources.game.extra=1"], "who is slowest"),
    ],
    ids=str,
)
def test_a_wrong_algorithm_is_explained(tmp_path: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        loaded(tmp_path, *overrides)


def test_replay_and_deterministic_exclude_each_other(tmp_path: Path) -> None:
    overrides = ["run.deterministic=true", f"{TRAINER}.max_staleness=0", f"{TRAINER}.batch_groups=4"]
    replay = [f"{TRAINER}.replay.kind=latest", "node.episodes_per_rollout=64"]
    with pytest.raises(ConfigError, match="every group once"):
        loaded(tmp_path, *overrides, *replay)


def test_levels_that_the_environment_lacks_are_found(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="levels is 3, but environment game has 1"):
        loaded(tmp_path, f"{SELECT}.kind=levels", f"{SELECT}.args={{levels = 3}}", environments=True)


def test_the_pipeline_is_told_in_order_and_the_resolved_file_reads_back(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        f"{SELECT}.kind=greso",
        f"{SELECT}.args={{target = 0.2}}",
        "sources.game.extra=2",
        f"{TRAINER}.filters=['truncated', 'zero-advantage']",
        f"{TRAINER}.filter_args={{truncated = {{most = 0.25}}}}",
        f"{TRAINER}.replay.kind=prioritized",
    )
    assert list(pipeline(config)) == [
        "source game: game in order × 1 ▸ greso(target=0.2) ▸ groups of 8 + 2 redundant ▸ feeds solver",
        "policy solver: at least 2 members ▸ not truncated(most=0.25) ▸ not zero-advantage ▸ grpo advantages ▸"
        " edf order within staleness 2 ▸ batches of 8 groups, at most 2 of them replayed (prioritized)",
    ]
    again = tmp_path / "again.toml"
    again.write_text(resolved(config))
    assert load(again, environments=False) == config
