"""`check` on questions: what a preset means, what is wrong in them, without torch, and without the extra."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from astraflow.extras import install_hint
from astraflow.runfile import load, question_sets
from astraflow.runfile.question_sets import hub_names

RUN = """\
[run]
name = "demo"

[policies.solver]
model = "toy"
engine = { kind = "toy" }

[policies.solver.trainer]
steps = 4
learner = "toy"

[envs.game]
kind = "math"
args = { ARGS }

[sources.game]
env = "game"
group_size = 4
"""
ROOT = Path(__file__).parents[2]
# `astraflow check` in a process in which some packages can't be imported, its children included.
WITHOUT = """\
import sys
BLOCKED = {BLOCKED!r}
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
"""


def checked(folder: Path, args: str, *, without: tuple[str, ...] = ("torch",), bom: str = "") -> tuple[int, str]:
    """Exit code of `check` and what it says."""
    (folder / "run.toml").write_text(bom + RUN.replace("ARGS", args), encoding="utf-8")
    (folder / "sitecustomize.py").write_text(WITHOUT.format(BLOCKED=without))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        "HF_HOME": str(folder / "hf"),
    }
    command = [sys.executable, "-m", "astraflow.cli.main", "check", "run.toml"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    return done.returncode, done.stdout + done.stderr


def test_a_preset_is_spelt_out_and_its_download_announced(tmp_path):
    code, text = checked(tmp_path, 'dataset = "dapo-filter", answer_key = "gold"')
    assert code == 0, text
    assert (
        '# environment game: dataset dapo-filter means path = "hf://datasets/aaabiao/dapo_filter/train", '
        'question_key = "prompt", answer_key = "gold", question_strip = '
    ) in text
    assert "hf://datasets/aaabiao/dapo_filter/train of environment game is downloaded from the Hugging Face hub" in text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ('dataset = "deepscale"', "did you mean 'deepscaler'"),
        ('path = "questions.jsonl"', "questions.jsonl:1: has no key 'question'; did you mean 'problem'"),
        ('path = "questions.jsonl", question_key = "problem"', "questions.jsonl:2: answer is 'x ####', of which"),
        ('path = "questions.jsonl", template = "{problem}"', "unknown placeholder {problem}"),
        ('path = "hf://datasets/org/name"', "names no files of a dataset"),
        ('path = "missing.jsonl"', "missing.jsonl doesn't exist"),
        ("", "needs args.path"),
    ],
)
def test_mistakes_in_questions_are_told_without_torch(tmp_path, args, message):
    (tmp_path / "questions.jsonl").write_text('{"problem": "?", "answer": 1}\n{"problem": "??", "answer": "x ####"}\n')
    code, text = checked(tmp_path, args)
    assert (code, message in text) == (1, True), text


def test_without_the_extra_it_says_what_was_not_checked(tmp_path):
    (tmp_path / "questions.jsonl").write_text('{"question": "?", "answer": 1}\n')
    code, text = checked(tmp_path, 'path = "questions.jsonl"', without=("torch", "math_verify"))
    assert code == 0, text
    assert "# environment game: its arguments and questions weren't checked, math_verify isn't installed here" in text
    assert install_hint("envs") in text
    (tmp_path / "questions.parquet").write_bytes(b"PAR1")
    code, text = checked(tmp_path, 'path = "questions.parquet"', without=("torch", "pyarrow"))
    assert code == 1
    assert f"this environment needs pyarrow; run: {install_hint('envs')}" in text


def test_a_run_file_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "questions.jsonl").write_text('{"question": "?", "answer": 1}\n')
    code, text = checked(tmp_path, 'path = "questions.jsonl"', bom="\ufeff")
    assert code == 0, text


def test_a_local_file_needs_no_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("questions.jsonl").write_text('{"question": "?", "answer": 1}\n')
    Path("run.toml").write_text(RUN.replace("ARGS", 'path = "questions.jsonl"'))
    assert list(question_sets(load("run.toml"))) == []


def test_a_set_of_problems_is_spelt_out_and_its_download_announced(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    text = RUN.replace('kind = "math"\nargs = { ARGS }', 'kind = "code"\nargs = { dataset = "deepcoder" }')
    path.write_text(text)
    assert list(question_sets(load(str(path)))) == [
        "environment game: dataset deepcoder means hf://datasets/agentica-org/DeepCoder-Preview-Dataset/primeintellect/"
        'train, question_key = "problem", tests_key = "tests"'
    ]
    known = {"dataset": "deepcoder"}
    assert len(hub_names("code", known)) == 1
    assert hub_names("code", {"dataset": "nope"}) == hub_names("code", {"dataset": "humaneval"})
