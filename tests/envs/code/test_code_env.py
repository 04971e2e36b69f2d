"""The environment: rows of every published shape, and what a reply is worth."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from astraflow.config import EnvSection
from astraflow.envs import build_env
from astraflow.envs.code import CodeEnv
from astraflow.envs.code.problems import Tests, problem_of
from astraflow.envs.code.sets import QUESTION_KEYS, SETS, TESTS_KEYS, table
from astraflow.errors import ConfigError, EnvError, RowError
from astraflow.messages import Reason
from tests.envs.scripted import ScriptedPolicy, reply, task

ADD = "a, b = map(int, input().split())\nprint(a + b)"
SHAPES: dict[str, tuple[dict[str, Any], str]] = {
    "in and out": ({"question": "Add.", "input_output": json.dumps({"inputs": ["1 2"], "outputs": ["3"]})}, ADD),
    "in and out, lists of lines": (
        {"question": "Add.", "input_output": {"inputs": [["1 2"]], "outputs": [["3"]]}},
        ADD,
    ),
    "in and out of a function": (
        {"question": "Add.", "input_output": {"fn_name": "add", "inputs": [[1, 2]], "outputs": [[3]]}},
        "def add(a, b): return a + b",
    ),
    "cases that read and print": (
        {"problem": "Add.", "tests": json.dumps([{"type": "stdin_stdout", "input": "1 2\n", "output": "3\n"}])},
        ADD,
    ),
    "cases of a function": (
        {"problem": "Add.", "tests": [{"type": "function_call", "fn_name": "add", "input": [1, 2], "output": [3]}]},
        "def add(a, b): return a + b",
    ),
    "cases whose row names the function": (
        {
            "question_content": "Add.",
            "starter_code": "class Solution:\n    def add(self, a, b):",
            "metadata": json.dumps({"func_name": "add"}),
            "public_test_cases": json.dumps([{"testtype": "functional", "input": '1\n"2"', "output": '"12"'}]),
        },
        "class Solution:\n    def add(self, a, b): return str(a) + b",
    ),
    "asserts": (
        {"text": "Add.", "test_list": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"], "test_setup_code": "x = 1"},
        "def add(a, b): return a + b",
    ),
    "a script": (
        {
            "prompt": "Add.",
            "test": "import math\nfor i in range(9):\n    assert add(i, 1) == i + 1",
            "test_list": ["x"],
        },
        "def add(a, b): return a + b",
    ),
    "a function to complete": (
        {"prompt": "def add(a, b):\n", "entry_point": "add", "test": "def check(f):\n    assert f(1, 2) == 3"},
        "return a + b",
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
async def test_every_shape_of_tests_is_read_and_judged(shape: str, tmp_path: Path) -> None:
    row, right = SHAPES[shape]
    (tmp_path / "problems.jsonl").write_text(json.dumps(row))
    env = build_env(EnvSection(kind="code", args={"path": str(tmp_path / "problems.jsonl"), "case_s": 60}))
    assert env.size == 1
    played = {}
    for says in (f"```python\n{right}\n```", "```python\nx = 1\n```"):
        outcome = await env.run(task(env.task(0)), {"p": ScriptedPolicy(says)})
        assert outcome.reason is Reason.OK
        played[says] = (outcome.rewards["p"], outcome.correct)
    assert list(played.values()) == [(1.0, 1.0), (0.0, 0.0)]
    await env.close()


def test_the_share_of_tests_can_be_the_reward(tmp_path: Path) -> None:
    row = {"text": "Add.", "test_list": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"]}
    (tmp_path / "p.jsonl").write_text(json.dumps(row))
    env = CodeEnv(path=str(tmp_path / "p.jsonl"), reward="share", case_s=60)
    grade = env.grade(env.task(0), reply("def add(a, b): return 0"))
    assert (grade.reward, grade.correct, grade.parts) == (0.5, 0.0, {"solved": 0.0, "tests": 0.5})
    assert env.grade(env.task(0), reply("```python\n```")).reward == 0
    fewer = CodeEnv(path=str(tmp_path / "p.jsonl"), most_tests=1)
    assert msgspec.json.decode(fewer.task(0)["tests"], type=Tests).count == 1


def test_humaneval_comes_out_of_its_package() -> None:
    env = CodeEnv(dataset="humaneval", system="Be brief.")
    assert env.size == 164
    system, user = env.prompt(env.task(0))
    assert system.content == "Be brief."
    assert "End with the whole program" in user.content
    assert "from typing import List\n\n\ndef has_close_elements(" in user.content
    msgspec.msgpack.encode(env.task(163))
    with pytest.raises(EnvError, match="there are 164"):
        env.task(164)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"question": "x"}, "has no tests.*set args.tests_key"),
        ({"tests": [{"input": "", "output": ""}]}, "has no problem.*set args.question_key"),
        ({"question": " ", "tests": [{"input": "", "output": ""}]}, "expected text"),
        ({"question": "x", "tests": [{"input": ""}]}, "expected a test with input and output"),
        ({"question": "x", "tests": "{}"}, "is no shape of tests|which is no shape"),
        ({"question": "x", "tests": {"inputs": ["1"], "outputs": []}}, "equal length"),
        ({"question": "x", "tests": {"inputs": [], "outputs": []}}, "holds no test"),
        ({"question": "x", "tests": [1]}, "no shape of tests that is known"),
        ({"question": "x", "tests": [{"type": "function_call", "input": [], "output": 1}]}, "doesn't name it"),
        (
            {"question": "x", "tests": [{"fn_name": n, "input": [], "output": 1} for n in "fg"]},
            "several functions: f, g",
        ),
    ],
)
def test_a_row_that_cannot_be_used_says_why(row: dict[str, Any], said: str) -> None:
    with pytest.raises(RowError, match=said):
        problem_of(row, QUESTION_KEYS, TESTS_KEYS)


def test_files_without_usable_rows_are_named_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    good = {"question": "x", "tests": ["assert f() == 1"]}
    path.write_text("\n".join(map(json.dumps, [good, {"question": "x"}, {"question": "y"}])))
    with pytest.raises(ConfigError, match=r"p.jsonl:2: has no tests.*and 1 more rows.*bad_rows = 'skip'"):
        _ = CodeEnv(path=str(path)).size
    assert CodeEnv(path=str(path), bad_rows="skip").size == 1
    path.write_text(json.dumps({"question": "x"}))
    with pytest.raises(ConfigError, match=r"p.jsonl:1"):
        _ = CodeEnv(path=str(path), bad_rows="skip").size


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({}, r"needs args.path, or args.dataset, one of humaneval"),
        ({"dataset": "human-eval"}, "did you mean 'humaneval'"),
        ({"dataset": "apps", "reward": "some"}, "expected one of all, share"),
        ({"dataset": "apps", "case_s": 0}, "case_s = 0"),
        ({"dataset": "apps", "path": ["a", ""]}, "expected text, or a list"),
        ({"dataset": "apps", "template": "{problem}"}, "unknown placeholder"),
        ({"dataset": "apps", "memory_mb": 0}, "expected more than 0"),
        ({"path": "hf://datasets/x"}, "hf://datasets"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(args: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        build_env(EnvSection(kind="code", args=args))


def test_the_page_lists_the_sets() -> None:
    page = (Path(__file__).parents[3] / "docs/code.md").read_text(encoding="utf-8")
    assert table() in page
    assert len(SETS) >= 10
