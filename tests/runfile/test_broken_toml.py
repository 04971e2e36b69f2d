"""Behind what isn't TOML the rest of a run file is still checked, and nothing is said that might not be true."""

import random
import tomllib
from pathlib import Path

import pytest

from astraflow.runfile.broken_toml import salvage
from tests.runfile.runfiles import TOY, error_in, mistakes_in


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.toml"


WRONG = TOY.replace("group_size = 4", "group_sise = 4").replace("size = 8", "size = -8")  # two mistakes of its own


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('name = "demo"', "name = ", "Invalid value (at line 2, column 8)"),
        ('name = "demo"', 'name = "demo', "Illegal character '\\n' (at line 2, column 13)"),
        ('name = "demo"', 'name = "demo"\nname = "again"', "Cannot overwrite a value (at line 3"),
        ("steps = 4", "steps = 4 5", "Expected newline or end of document after a statement (at line 9, column 11)"),
        ("steps = 4", "steps", "(at line 9, column 6)"),
        ("steps = 4", "max_staleness = zero", "Invalid value (at line 9, column 17)"),
        ("steps = 4", "steps = 4\nfilters = [\n1,", "(at line 10)"),
        ('kind = "toy"\n\n[sources', "kind = toy\n\n[sources", "Invalid value (at line 13, column 8)"),
        ("[policies.solver.trainer]", "[policies.solver.trainer", "Expected ']' at the end of a table declaration"),
        ("[envs.game]", "[[envs.game]", "Expected ']]' at the end of an array declaration"),
        ("[run]", "[run]\n[run]", "twice (at line 2, column 5)"),
    ],
)
def test_the_other_mistakes_are_told_too(file: Path, old: str, new: str, told: str) -> None:
    mistakes = mistakes_in(error_in(file, WRONG.replace(old, new, 1)))
    broken = [mistake for mistake in mistakes if f"{file} is not valid TOML: " in mistake]
    assert len(broken) == 1
    assert told in broken[0]
    assert len(mistakes) == 3, mistakes
    assert any("unknown key sources.game.group_sise" in mistake for mistake in mistakes)
    assert any(mistake.startswith("eval.held-out.size") for mistake in mistakes)


def test_two_broken_statements_are_both_told(file: Path) -> None:
    text = TOY.replace('name = "demo"', "name = ").replace("steps = 4", "steps = four")
    assert [mistake.partition("(")[2] for mistake in mistakes_in(error_in(file, text))] == [
        "at line 2, column 8)",
        "at line 9, column 9)",
    ]


def test_a_value_inside_of_arguments_is_unknown_alone(file: Path) -> None:
    text = TOY.replace('kind = "toy"\n\n[sources', 'kind = "toy"\nargs.tokens = ,\n\n[sources')
    assert len(mistakes_in(error_in(file, text))) == 1


def test_whatever_is_damaged_is_told_as_mistakes(file: Path) -> None:
    damage = random.Random(3)
    for _ in range(300):
        text = list(TOY)
        for _ in range(damage.randint(1, 4)):
            place = damage.randrange(len(text))
            text[place] = damage.choice(["", "[", "]", '"', "=", "\n", '"""', "{", "'", ".", "#", ",", "\\"])
        damaged = "".join(text)
        try:
            tomllib.loads(damaged)
        except tomllib.TOMLDecodeError:
            _, broken = salvage(damaged)
            assert broken
            assert "is not valid TOML" in error_in(file, damaged)
