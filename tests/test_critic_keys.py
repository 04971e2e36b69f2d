"""[policies.<name>.trainer.critic]: what the table brings along, and combinations that mean nothing."""

from pathlib import Path
from typing import Any

import pytest

from astraflow.errors import ConfigError
from astraflow.runfile import load, pipeline, resolved
from tests.runfile.runfiles import TOY

TRAINER = "policies.solver.trainer."
CRITIC = f"{TRAINER}critic."
PPO = f"{TRAINER}loss.preset=ppo"


def loaded(folder: Path, *overrides: str) -> Any:
    (folder / "run.toml").write_text(TOY)
    return load(folder / "run.toml", overrides, environments=False)


@pytest.mark.parametrize("overrides", [[PPO], [f"{TRAINER}critic={{}}"], [f"{CRITIC}gae_lambda=0.95"]])
def test_the_table_alone_turns_it_on_and_keeps_equal_groups(tmp_path: Path, overrides: list[str]) -> None:
    config = loaded(tmp_path, *overrides)
    trainer = config.policies["solver"].trainer
    assert (trainer.advantage, trainer.filters, trainer.loss.normalise) == ("gae", (), "batch")
    told = "groups of equal rewards too ▸ advantages of a critic (GAE, gamma=1, lambda=0.95) ▸"
    assert told in "".join(pipeline(config))
    (tmp_path / "run.toml").write_text(resolved(config))
    assert load(tmp_path / "run.toml", environments=False) == config


def test_what_the_file_says_wins(tmp_path: Path) -> None:
    written = [f"{TRAINER}filters=['truncated']", f"{TRAINER}loss.normalise=none", f"{CRITIC}gamma=0.9"]
    config = loaded(tmp_path, PPO, *written)
    trainer = config.policies["solver"].trainer
    assert (trainer.filters, trainer.loss.normalise, trainer.critic.gamma) == (("truncated",), "none", 0.9)
    assert "members ▸ not truncated ▸ advantages of a critic (GAE, gamma=0.9," in "".join(pipeline(config))


def test_other_runs_of_the_process_dont_share_a_presets_table(tmp_path: Path) -> None:
    assert loaded(tmp_path, PPO, f"{CRITIC}gamma=0.5").policies["solver"].trainer.critic.gamma == 0.5
    assert loaded(tmp_path, PPO).policies["solver"].trainer.critic.gamma == 1.0


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ([f"{TRAINER}advantage=gae"], "is gae, which needs a critic; add a table [policies.solver.trainer.critic]"),
        ([PPO, f"{TRAINER}advantage=grpo"], "is grpo, and there is a critic"),
        ([f"{CRITIC}gamma=1", f"{TRAINER}loss.preset=dapo"], "(from preset = dapo), and there is a critic"),
        ([f"{CRITIC}gamma=1", f"{TRAINER}advantage=rloo"], "is rloo, and there is a critic: one of them would not be"),
        ([PPO, f"{TRAINER}filters=['zero-advantage']"], "drop the groups that always fail"),
        ([PPO, f"{CRITIC}warmup_steps=4"], "not less than the 4 steps of the run"),
        ([PPO, f"{CRITIC}warmup_steps=2", f"{TRAINER}warmup_steps=3"], "is 3 after the critic's 2, more than the 4"),
        ([PPO, f"{TRAINER}replay.kind=prioritized"], "which only the critic knows"),
        ([PPO, f"{CRITIC}lambda=1"], "unknown key policies.solver.trainer.critic.lambda"),
        ([PPO, f"{CRITIC}gamma=1.5"], "expected"),
        ([f"{TRAINER}critic=true"], "expected a table, got true"),
    ],
    ids=["gae", "grpo", "dapo", "rloo", "filter", "warmup", "both", "replay", "lambda", "gamma", "table"],
)
def test_what_means_nothing_is_refused(tmp_path: Path, overrides: list[str], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, *overrides)
    assert problem in str(caught.value)
