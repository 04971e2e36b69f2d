"""What `check` finds out about environments by building them: arguments, agents, data, which tasks."""

import os
from pathlib import Path

import pytest

from astraflow.runfile import load
from tests.runfile.runfiles import error_of


def test_environment_arguments_are_checked_by_building_it(file: Path) -> None:
    message = error_of(
        file, "envs.game.kind=reasoning-gym", "envs.game.args={ dataset = 'chain_sun' }", environments=True
    )
    assert message.startswith("envs.game in --set envs.game.kind=reasoning-gym: ")
    assert "chain_sum" in message
    assert "envs.game" in error_of(file, "envs.game.args.no_such=1", environments=True)


def test_an_agent_that_is_not_there_is_named_whatever_the_environment(file: Path) -> None:
    reasoning = ["envs.game.kind=reasoning-gym", "envs.game.args={ dataset = 'chain_sum' }"]
    for kind in (["envs.game.kind=toy"], reasoning):
        message = error_of(file, *kind, "envs.game.agent=no_such:agent", environments=True)
        assert "agent no_such:agent: there is no module 'no_such'" in message


def test_a_dataset_line_that_is_not_json_is_named(file: Path) -> None:
    (file.parent / "tasks.jsonl").write_text('{"question": "1+1", "answer": "2"}\nnot json\n')
    message = error_of(file, "envs.game.kind=math", "envs.game.args={ path = 'tasks.jsonl' }", environments=True)
    assert "tasks.jsonl:2" in message


USER_ENV = """
from astraflow.envs import ChatMessage, Grade, SingleTurnEnv

class Mine(SingleTurnEnv):
    size = 100
    def task(self, index): return {"index": index}
    def prompt(self, payload): return [ChatMessage("user", "hi")]
    def grade(self, payload, reply): return Grade(reward=0.0)
"""


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["sources.game.size=50", "eval.held-out.first=50"], ""),
        (["sources.game.size=50"], "tasks 1000000 to 1000007 are asked for, but environment game has only 0 to 99"),
        (["sources.game.size=101", "eval.held-out.first=0"], "tasks 0 to 100 are asked for"),
        (
            ["sources.game.size=50", "eval.held-out.first=49"],
            "tasks 49 to 56 overlap with those of source game (0 to 49)",
        ),
        (["eval.held-out.first=80"], "tasks 80 to 87 overlap with those of source game (0 to 99)"),
        (["sources.game.first=88", "eval.held-out.first=80"], ""),
    ],
)
def test_tasks_stay_inside_the_environment_and_apart(file: Path, overrides: list[str], message: str) -> None:
    (file.parent / "mine.py").write_text(USER_ENV)
    every = ["envs.game.kind=mine:Mine", *overrides]
    if message:
        assert message in error_of(file, *every, environments=True)
    else:
        load(file, every)


@pytest.mark.parametrize(
    ("line", "mistake", "message"),
    [
        ('return [ChatMessage("user", "hi")]', 'return "hi"', "prompt() returned 'hi', expected a list of ChatMessage"),
        ('return {"index": index}', "return index", "task(0) returned 0, expected a dict"),
        ('return {"index": index}', "return 1 / 0", "its first task can't be made: ZeroDivisionError"),
        ('return {"index": index}', 'return {"index": object()}', "its first task can't be made: TypeError"),
    ],
    ids=["prompt", "no-dict", "raises", "unsendable"],
)
def test_an_environment_that_makes_no_task_is_found_offline(file: Path, line: str, mistake: str, message: str) -> None:
    assert line in USER_ENV
    (file.parent / "mine.py").write_text(USER_ENV.replace(line, mistake))
    assert message in error_of(
        file, "envs.game.kind=mine:Mine", "sources.game.size=50", "eval.held-out.first=50", environments=True
    )


def test_an_endless_source_keeps_away_from_held_out_tasks_for_the_steps_of_the_run(file: Path) -> None:
    (file.parent / "mine.py").write_text(USER_ENV.replace("size = 100", "size = None"))
    endless = ["envs.game.kind=mine:Mine"]
    assert "overlap" in error_of(file, *endless, "eval.held-out.first=31", environments=True)  # 4 steps of 8 groups
    load(file, [*endless, "eval.held-out.first=32"])
    assert "is endless; set sources.game.size too" in error_of(
        file, *endless, "sources.game.shuffle=true", environments=True
    )


def test_hash_ordered_datasets_can_be_checked_under_any_hash_seed(file: Path) -> None:
    assert os.environ.get("PYTHONHASHSEED") != "0"
    load(file, ["envs.game.kind=reasoning-gym", "envs.game.args={ dataset = 'ransom_note' }"])
