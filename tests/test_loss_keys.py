"""[policies.<name>.trainer.loss]: presets are spelled out, and combinations that mean nothing are refused."""

from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from astraflow.config import CriticSection, LossSection
from astraflow.errors import ConfigError
from astraflow.learners.losses.presets import PRESETS
from astraflow.runfile import load, resolved
from astraflow.runfile.docs import page
from tests.runfile.runfiles import TOY

LOSS = "policies.solver.trainer.loss."
TRAINER = "policies.solver.trainer."


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.toml"
    path.write_text(TOY)
    return path


def trainer_of(file: Path, *overrides: str) -> Any:
    trainer = load(file, overrides, environments=False).policies["solver"].trainer
    assert trainer is not None
    return trainer


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_is_valid_spelled_out_and_documented(file: Path, name: str) -> None:
    config = load(file, [f"{LOSS}preset={name}"], environments=False)
    trainer = config.policies["solver"].trainer
    assert trainer is not None
    for table, parts in ((trainer.loss, PRESETS[name].loss), (trainer, PRESETS[name].trainer)):
        for key, value in parts.items():
            found = getattr(table, key)
            expected = CriticSection(**value) if key == "critic" else value
            assert (list(found) if isinstance(found, tuple) else found) == expected, key
    file.write_text(resolved(config))
    assert load(file, environments=False) == config
    assert f"| `{name}` | [{PRESETS[name].source}]" in page()


def test_presets_are_those_of_the_schema() -> None:
    literal = get_args(get_type_hints(LossSection, include_extras=True)["preset"])[0]
    assert sorted(get_args(literal)) == sorted({*PRESETS, "none"})


def test_what_the_file_says_wins_over_a_preset(file: Path) -> None:
    trainer = trainer_of(file, f"{LOSS}preset=gspo", f"{LOSS}clip_low=0.1", f"{TRAINER}updates_per_batch=2")
    assert (trainer.loss.clip_low, trainer.loss.clip_high, trainer.updates_per_batch) == (0.1, 4e-4, 2)


def test_constant_normaliser_is_the_longest_reply(file: Path) -> None:
    longest = "policies.solver.sampling.max_new_tokens=77"
    assert trainer_of(file, f"{LOSS}preset=dr-grpo").loss.aggregation_constant == 256
    assert trainer_of(file, f"{LOSS}preset=dr-grpo", longest).loss.aggregation_constant == 77
    given = trainer_of(file, f"{LOSS}preset=dr-grpo", f"{LOSS}aggregation_constant=9")
    assert given.loss.aggregation_constant == 9


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ([f"{LOSS}preset=dr_grpo"], "did you mean 'dr-grpo'?"),
        ([f"{LOSS}objective=klip"], "is 'klip', expected clip, ratio, logprob, cispo, sapo or module:function"),
        ([f"{TRAINER}clip_low=0.1"], "did you mean 'policies.<name>.trainer.loss.clip_low'?"),
        ([f"{LOSS}args.x=1"], "are for a function of your own, but objective is clip"),
        ([f"{LOSS}args=1"], "expected a table, got 1"),
        ([f"{LOSS}dual_clip=1.1"], "at least 1 + clip_high = 1.28"),
        ([f"{LOSS}objective=cispo", f"{LOSS}ratio=sequence"], "cispo has no ratio of sequences"),
        ([f"{LOSS}m2_threshold=0.01", f"{LOSS}ratio=sequence"], "m2_threshold looks at tokens"),
        ([f"{LOSS}correction=mask"], 'needs proximal = "recompute"'),
        ([f"{LOSS}preset=decoupled-ppo", f"{LOSS}correction_floor=5.0"], "all would be masked"),
        ([f"{LOSS}preset=m2po", f"{LOSS}proximal=recompute"], "bounds ratios to the engine's logprobs"),
        ([f"{LOSS}preset=gspo", f"{TRAINER}updates_per_batch=1"], "every ratio is then 1"),
        ([f"{TRAINER}advantage=reward"], "set filters = []"),
    ],
    ids=lambda each: each[-1].split(".")[-1][:24] if isinstance(each, list) else "",
)
def test_what_means_nothing_is_refused(file: Path, overrides: list[str], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        trainer_of(file, *overrides)
    assert problem in str(caught.value)


def test_a_loss_of_the_users_own_is_looked_for(file: Path) -> None:
    Path("mine.py").write_text("def loss(tokens):\n    return tokens.current_N\n")
    load(file, [f"{LOSS}objective=mine:loss"])
    with pytest.raises(ConfigError, match="mine has no 'los'; did you mean 'loss'"):
        load(file, [f"{LOSS}objective=mine:los"])
