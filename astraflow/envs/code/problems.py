"""From rows of question files to problems with their tests, in every shape that published sets have. It runs nothing.

Shapes of tests, told apart by what the row holds:
    inputs and outputs   {"inputs": […], "outputs": […], "fn_name"?}: APPS, TACO, LiveCodeBench
    a list of cases      [{"input", "output", "type"?, "fn_name"?, "metadata"?}]: DeepCoder, LiveCodeBench's own
    a list of asserts    ["assert f(1) == 2"]: MBPP
    a script             a text that calls `check(name)`, or asserts: HumanEval, MBPP+

Invariant: every problem has a question and at least one test; a row of which that isn't true is named, not guessed at.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from astraflow.errors import RowError
from astraflow.models.tokenizer import utf8


class Tests(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a program must do. One of the three kinds is there.

    Attributes:
        printed: (standard input, what is to be printed).
        calls: (arguments, values any of which is right) of the function `name`.
        scripts: Python that calls functions of the program's; each that raises nothing has passed.
        setup: Python before the scripts.
        name: of the function that is asked for; "" = a whole program, or what the scripts call.
        start: the beginning of that function, which the program may repeat or go on from.
    """

    printed: tuple[tuple[str, str], ...] = ()
    calls: tuple[tuple[list[Any], list[Any]], ...] = ()
    scripts: tuple[str, ...] = ()
    setup: str = ""
    name: str = ""
    start: str = ""

    @property
    def count(self) -> int:
        return len(self.printed) or len(self.calls) or len(self.scripts)


class CodeProblem(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked, and its tests."""

    question: str
    tests: Tests


def problem_of(row: Mapping[str, Any], question_key: str, tests_key: str) -> CodeProblem:
    """The problem of a row. Raises RowError, which says what is wrong with it.

    Args:
        question_key, tests_key: keys; `a|b` is a, or b where there is no a.
    """
    question = _first(row, question_key, "question_key")
    if isinstance(question, list) and question and isinstance(question[-1], Mapping):
        question = question[-1].get("content", "")
    if not isinstance(question, str) or not question.strip():
        raise RowError(f"{question_key} is {question!r:.60}, expected text")
    tests = _tests(row, _parsed(_first(row, tests_key, "tests_key")), question, tests_key)
    if not tests.count:
        raise RowError(f"{tests_key} holds no test")
    return CodeProblem(question=utf8(_asked(row, question, tests)), tests=tests)


def _first(row: Mapping[str, Any], keys: str, argument: str) -> Any:
    for key in keys.split("|"):
        if row.get(key) not in (None, "", []):
            return row[key]
    names = ", ".join(row)
    raise RowError(f"has no {keys}; set args.{argument} to one of: {names or 'none, the row is empty'}")


def _tests(row: Mapping[str, Any], found: Any, question: str, key: str) -> Tests:
    if isinstance(found, Mapping) and "inputs" in found:
        return _in_and_out(found, key)
    if isinstance(found, Sequence) and not isinstance(found, str) and found:
        if all(isinstance(each, Mapping) for each in found):
            return _cases(row, found, key)
        if all(isinstance(each, str) for each in found):
            setup = "\n".join(str(row.get(each) or "") for each in ("test_setup_code", "setup"))
            return Tests(scripts=tuple(found), setup=setup)
    if isinstance(found, str) and found.strip():
        name = str(row.get("entry_point") or "")
        imports = row.get("test_imports")
        setup = "\n".join(imports) if isinstance(imports, list) else ""
        if name:
            start = f"{question.rstrip()}\n    pass\n"
            return Tests(scripts=(f"{found}\ncheck({name})\n",), setup=start, name=name, start=question)
        return Tests(scripts=(found,), setup=setup)
    raise RowError(f"{key} is {found!r:.60}, which is no shape of tests that is known; see docs/code.md")


def _in_and_out(found: Mapping[str, Any], key: str) -> Tests:
    inputs, outputs = found["inputs"], found.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise RowError(f"{key} has inputs and outputs that aren't lists of equal length")
    name = str(found.get("fn_name") or "")
    pairs = list(zip(inputs, outputs, strict=True))
    if name:
        return Tests(name=name, calls=tuple((_arguments(one), _values(other)) for one, other in pairs))
    return Tests(printed=tuple((_text(one), _text(other)) for one, other in pairs))


def _cases(row: Mapping[str, Any], found: Sequence[Mapping[str, Any]], key: str) -> Tests:
    if missing := [each for each in found if "input" not in each or "output" not in each]:
        raise RowError(f"{key} holds {dict(missing[0])!r:.80}, expected a test with input and output")
    names = {name for each in found if (name := _name_of(each, row))}
    if len(names) > 1:
        raise RowError(f"{key} asks for several functions: {', '.join(sorted(names))}")
    if not names:
        return Tests(printed=tuple((_text(each["input"]), _text(each["output"])) for each in found))
    calls = tuple((_arguments(each["input"]), _values(each["output"])) for each in found)
    return Tests(name=names.pop(), calls=calls)


def _name_of(case: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """The function that a case calls; "" where it reads and prints."""
    kind = str(case.get("type") or case.get("testtype") or "")
    if kind.startswith("stdin"):
        return ""
    places = [case, _parsed(case.get("metadata")), _parsed(row.get("metadata"))]
    for place in places:
        if isinstance(place, Mapping) and (name := place.get("fn_name") or place.get("func_name")):
            return str(name)
    if kind.startswith("func"):
        raise RowError("has a test that calls a function, and doesn't name it: no fn_name, no metadata.func_name")
    return ""


def _arguments(given: Any) -> list[Any]:
    """Of a call: a list of them, or a text with one in JSON on each line."""
    if isinstance(given, str):
        return [_parsed(line, any_value=True) for line in given.splitlines() if line.strip()]
    return list(given) if isinstance(given, list) else [given]


def _values(expected: Any) -> list[Any]:
    """Any of them is right: sets of before wrapped a value into a list of one."""
    value = _parsed(expected, any_value=True)
    return [value, value[0]] if isinstance(value, list) and len(value) == 1 else [value]


def _text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _parsed(value: Any, *, any_value: bool = False) -> Any:
    """A text that holds JSON, read; any other value as it is."""
    if isinstance(value, str) and (any_value or value.lstrip()[:1] in ("{", "[")):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _asked(row: Mapping[str, Any], question: str, tests: Tests) -> str:
    """The question, with what the tests need said: the beginning of a function, its name, examples of calls."""
    if tests.start:
        return f"Complete this function:\n```python\n{question.rstrip()}\n```"
    starter = str(row.get("starter_code") or "").strip()
    if starter:
        return f"{question.rstrip()}\n\nBegin with:\n```python\n{starter}\n```"
    if tests.name:
        return f"{question.rstrip()}\n\nThe function is called `{tests.name}`."
    shown = row.get("test_list")
    if isinstance(shown, list) and shown:
        return f"{question.rstrip()}\n\nIt must pass tests such as:\n```python\n{shown[0]}\n```"
    return question
