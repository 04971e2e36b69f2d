"""The examples of docs/environments.md do what the page says."""

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from astraflow.envs import SingleTurnEnv
from tests.envs.scripted import ScriptedPolicy, task

PAGE = (Path(__file__).parents[2] / "docs/environments.md").read_text(encoding="utf-8")


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def the_class(extra: str = "") -> type[SingleTurnEnv]:
    """The page's class, with one of its methods replaced."""
    scope: dict[str, Any] = {}
    exec(blocks()[0] + textwrap.indent(textwrap.dedent(extra), "    "), scope)
    found: type[SingleTurnEnv] = scope["Sums"]
    return found


@pytest.mark.parametrize(("says", "reward"), [("12", 1.0), ("\\boxed{12}", 1.2), ("\\boxed{13}", 0.2)])
async def test_the_class_of_the_page_grades_as_it_says(says: str, reward: float) -> None:
    env = the_class()()
    outcome = await env.run(task(env.task(57)), {"p": ScriptedPolicy(says)})
    assert outcome.rewards == {"p": pytest.approx(reward)}
    assert (outcome.answer, outcome.correct) == ("12", float("12" in says))


async def test_the_judge_of_the_page_decides() -> None:
    env = the_class(blocks()[1])(policy="p")
    env.part_weights = {}
    for says, reward in (("Yes, very.", 1.0), ("No.", 0.0)):
        outcome = await env.run(task(env.task(1)), {"p": ScriptedPolicy("Pardon me."), "judge": ScriptedPolicy(says)})
        assert outcome.rewards == {"p": reward}
