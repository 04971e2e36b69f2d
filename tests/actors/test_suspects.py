"""A task that takes its rollout process down again and again is found out and given up; the others are played."""

import asyncio
import json
from pathlib import Path

import pytest

from astraflow.actors.rollout.suspects import Suspects
from tests.cli.toyrun import TOY, sets, started, write_toy
from tests.e2e.liverun import QUICK

DEADLY = '''\
import os

from astraflow.envs.toy_env import ToyEnv


class Deadly(ToyEnv):
    """Task 1 takes the process down."""

    async def run(self, task, policies):
        outcome = await super().run(task, policies)
        if task.payload["index"] == 1:
            os._exit(139)
        return outcome
'''
DIES = TOY.replace('kind = "toy"\n\n[sources', 'kind = "deadly:Deadly"\nargs = { size = 8 }\n\n[sources')
DIES = DIES.split("[eval", 1)[0] + "epochs = 1\n"


DEAD: list[object] = []  # what was in work: it must not be collected, which would end it well


def after_a_death(path: Path) -> Suspects:
    """The next process's view; the one before wrote and closed nothing more."""
    suspects = Suspects(path)
    suspects.open()
    return suspects


async def play(suspects: Suspects, *tasks: str, ends: tuple[str, ...] = ()) -> None:
    """Tasks of which some end before the process dies, which is when this returns."""
    for task in tasks:
        playing = suspects.playing(task)
        DEAD.append(playing)
        await playing.__aenter__()
        if task in ends:
            await playing.__aexit__(None, None, None)


async def test_what_is_in_work_at_two_deaths_is_played_alone_and_at_three_is_poison(tmp_path: Path) -> None:
    path = tmp_path / "in-work" / "rollout-a-0"
    for death in range(2):
        suspects = after_a_death(path)
        assert not suspects.verdict("i/s/0/1/0")
        await play(suspects, "i/s/0/1/0", "i/s/0/1/1", f"i/s/0/2/{death}", "i/s/0/3/0", ends=("i/s/0/3/0",))
    suspects = after_a_death(path)
    await play(suspects, "i/s/0/1/0")
    async with asyncio.TaskGroup() as group:
        other = group.create_task(play(suspects, "i/s/0/9/0"))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not other.done()  # nobody is played beside a suspect
        other.cancel()
    suspects = after_a_death(path)
    assert "died 3 times while it was played, the last time alone" in suspects.verdict("i/s/0/1/0")
    assert "of its group's others" in suspects.verdict("i/s/0/1/1")
    for innocent in ("i/s/0/2/0", "i/s/0/2/1", "i/s/0/3/0", "i/s/0/9/0"):
        assert not suspects.verdict(innocent)


async def test_an_episode_that_ends_clears_its_task_and_a_clean_end_everybody(tmp_path: Path) -> None:
    path = tmp_path / "rollout-a-0"
    for _ in range(2):
        await play(after_a_death(path), "i/s/0/1/0")
    await play(after_a_death(path), "i/s/0/1/0", ends=("i/s/0/1/0",))
    for _ in range(2):
        suspects = after_a_death(path)
        assert not suspects.verdict("i/s/0/1/0")
        await play(suspects, "i/s/0/1/0")
    suspects.close()
    assert not path.exists()


async def test_a_torn_or_foreign_file_accuses_nobody_wrongly(tmp_path: Path) -> None:
    path = tmp_path / "rollout-a-0"
    path.write_bytes(b"2 a/0\n+ b/0\n\xff\xfe\n9\n+ c/0")
    suspects = after_a_death(path)
    assert suspects._deaths == {"a/0": 2, "b/0": 1}


@pytest.mark.slow
async def test_a_task_that_kills_its_rollout_is_given_up_and_the_run_ends(tmp_path: Path) -> None:
    write_toy(tmp_path, DIES)
    (tmp_path / "deadly.py").write_text(DEADLY)
    quick = sets(*QUICK, "policies.solver.trainer.steps=100", "policies.solver.trainer.filters=[]")
    async with started(tmp_path, "up", "run.toml", *quick) as up:
        assert await up.end(within_s=100) == 0, up.output
    lines = [json.loads(line) for line in (tmp_path / "runs/demo/episodes.jsonl").read_text().splitlines()]
    given_up = [line for line in lines if line["error"].startswith("poison: the rollout process died")]
    assert {line["task_id"].split("/")[3] for line in given_up} == {"1"}
    assert len({line["task_id"] for line in given_up}) == 4
    assert len({line["task_id"] for line in lines if line["reason"] in ("ok", "policy", "truncated")}) == 7 * 4
    assert up.output.count("was killed") + up.output.count("ended with exit code 139") <= 10
