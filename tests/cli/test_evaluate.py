"""`astraflow eval`: a table and JSON without a run, of a run file's sets or of flags."""

import json
import os
from pathlib import Path

import pytest

from astraflow.cli.evaluate import table
from astraflow.cli.main import main
from astraflow.errors import ConfigError
from astraflow.node.evaluate import evaluation_of
from astraflow.runfile import load
from tests.cli.toyrun import TOY, finished, write_toy

TINY = ["--model", "tiny-reverse", "--env", "tiny", "--arg", "task=reverse", "--max-new-tokens", "8"]


async def test_a_model_is_evaluated_without_a_run_and_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    flags = ["--size", "6", "--repeats", "4", "--json"]
    code, output = await finished(tmp_path, "eval", *TINY, *flags, within_s=240)
    assert code == 0, output
    (row,) = json.loads(output[output.index("[") :])
    assert (row["set"], row["policy"], row["model"]) == ("eval", "policy", "tiny-reverse")
    assert (row["tasks"], row["repeats"], row["answers"], row["failed"]) == (6, 4, 24, 0)
    assert 0 < row["correct"] <= row["pass_at"]["2"] <= row["pass_at"]["4"] <= 1
    assert row["reward"] == row["correct"]
    assert row["correct_se"] >= 0
    assert os.listdir(tmp_path) == ["tmp"]
    assert not [name for name in os.listdir(tmp_path / "tmp") if name.startswith("astraflow")]


def test_a_run_file_is_stripped_of_everything_but_its_evaluations(tmp_path: Path) -> None:
    config = load(write_toy(tmp_path, TOY + '\n[eval.other]\nenv = "game"\n'), environments=False)
    both = evaluation_of(config, {})
    assert (set(both.eval), both.sources) == ({"held-out", "other"}, {})
    assert both.policies["solver"].trainer is None
    assert set(evaluation_of(config, {}, ["other"]).eval) == {"other"}
    assert evaluation_of(config, {"solver": "elsewhere"}).policies["solver"].model == "elsewhere"
    with pytest.raises(ConfigError, match=r"no \[eval.xyz\]; known: held-out, other"):
        evaluation_of(config, {}, ["xyz"])


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "name a run file, or one --model and an --env"),
        (["--model", "toy"], "name a run file, or one --model and an --env"),
        (["run.toml", "--size", "3"], "--size is for an evaluation without a run file"),
        (["run.toml", "--model", "solve=toy"], "--model solve=…: the run file has the policies ['solver']"),
        (["run.toml", "--only", "held"], "there is no [eval.held]"),
        (["--model", "toy", "--env", "toy", "--only", "x"], "--only is for the evaluations of a run file"),
        (["--model", "tiny", "--env", "tiny"], "did you mean"),
    ],
    ids=["nothing", "no-env", "size", "policy", "set", "only", "model"],
)
def test_mistakes_are_sentences(
    arguments: list[str],
    error: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_toy(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["eval", *arguments]) == 2
    assert error in capsys.readouterr().err


def test_the_table_has_what_is_known_and_dashes() -> None:
    row = {
        "set": "held",
        "policy": "solver",
        "tasks": 3,
        "repeats": 4,
        "answers": 11,
        "failed": 1,
        "correct": 0.5,
        "correct_se": 0.125,
        "pass_at": {"2": 0.75, "4": 1.0},
        "reward": None,
        "reward_se": None,
    }
    text = table([row, row | {"repeats": 1, "correct": None, "pass_at": {}, "reward": 0.25}])
    assert "avg@4 0.500 ± 0.125" in text
    assert "avg@1" not in text
    assert "pass@2" in text
    assert "0.750" in text
    assert "0.250" in text
    assert "–" in text
