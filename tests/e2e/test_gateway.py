"""Programs that know only a model's HTTP address play real runs: started for each episode, or taking sessions."""

import asyncio
import sys
from pathlib import Path

import openai

import astraflow as af
from astraflow.view.jsonl_lines import read_episodes
from tests.cli.toyrun import PATIENCE_S, TOY, finished, sets, started, write_toy
from tests.support import eventually

BLACK_BOX = """
import json, os, sys, openai
task = json.load(sys.stdin)
client = openai.OpenAI()
history = [{"role": "user", "content": f"TASK {task['payload']['index']}"}]
for _ in range(2):
    answer = client.chat.completions.create(model=os.environ["ASTRAFLOW_MODEL"], messages=history)
    history += [answer.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "MORE"}]
client.post("/reward", body={"reward": answer.usage.completion_tokens}, cast_to=object)
"""
WITHOUT_EVAL = TOY.partition("[eval")[0]


async def test_a_command_is_started_for_each_episode_and_trains(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(BLACK_BOX)
    line = f'kind = "toy"\ncommand = "{sys.executable} agent.py"\n\n[sources'
    text = WITHOUT_EVAL.replace('kind = "toy"\n\n[sources', line).replace("steps = 4", "steps = 1")
    write_toy(tmp_path, text)
    code, output = await finished(
        tmp_path, "up", "run.toml", *sets("sources.game.group_size=2", "node.episodes_per_rollout=2")
    )
    assert code == 0, output
    episodes = list(read_episodes(tmp_path / "runs/demo/episodes.jsonl"))
    assert {each.error for each in episodes} == {""}, output
    # Both turns are there. The toy's template writes no end tokens, a fork of its own; that the client's history is the
    # policy's shows in that there is no other reason.
    assert {len(each.replies) for each in episodes} == {2}, output
    assert {name for each in episodes for name in each.metrics} == {"client/openai", "forks", "forks/end"}, output


async def test_a_script_takes_sessions_until_the_run_has_ended(tmp_path: Path) -> None:
    text = WITHOUT_EVAL.replace('kind = "toy"\n\n[sources', 'kind = "toy"\nagent = "sessions"\n\n[sources')
    write_toy(tmp_path, text)
    folder = tmp_path / "runs" / "demo"
    async with started(tmp_path, "up", "run.toml") as command, asyncio.timeout(PATIENCE_S):
        played = await play_all(folder)
        assert await command.end() == 0, command.output
    assert played >= 4 * 2 * 4  # every episode of four steps, by this script alone


async def play_all(folder: Path) -> int:
    """Take sessions until nobody gives any; how many were rewarded."""
    await eventually(lambda: list((folder / "gateway").glob("*.json")), within_s=PATIENCE_S)
    played = 0
    async for session in af.sessions("game", folder=folder):
        async with openai.AsyncOpenAI(base_url=session.base_url, api_key=session.key) as client:
            asked = {"role": "user", "content": str(session.payload["index"])}
            await client.chat.completions.create(model=session.models[0], messages=[asked])
        await session.reward({"solver": float(played % 2)})
        played += 1
    return played
