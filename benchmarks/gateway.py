"""Sessions and turns per second of one gateway, the latency that it adds to a turn, and its CPU time per turn.

    python benchmarks/gateway.py --sessions 300 --turns 4

The policy is a tokenizer-free stand-in that answers at once, so that everything measured is the gateway, its HTTP, the
conversation's record and the client (aiohttp, in the same process: its CPU time is in the figures too).
"""

import argparse
import asyncio
import json
import statistics
import time
from typing import Any

import aiohttp
import numpy as np

from astraflow.actors.rollout.budget import Budget
from astraflow.actors.rollout.call import Call, Completion
from astraflow.actors.rollout.handle import Play, RecordedPolicy
from astraflow.actors.rollout.recording import Recording
from astraflow.envs.base import ChatMessage
from astraflow.envs.toy_env import ToyEnv
from astraflow.gateway.environment import SessionEnv
from astraflow.gateway.server import Gateway, Listening
from astraflow.gateway.sessions import Sessions
from astraflow.messages import Sampling, Task, VersionSpan
from astraflow.models.tokenizer import ToyTokenizer

_KEY = "rk-of-the-benchmark"
_TOKENS = 64


class AtOnce:
    """Completes every call at once."""

    async def generate(self, call: Call) -> Completion:
        tokens = np.arange(1, _TOKENS + 1, dtype=np.int32) % 60 + 1
        return Completion(
            tokens=tokens,
            logprobs=np.full(_TOKENS, -0.5, np.float32),
            versions=(VersionSpan(version=1, start=0, end=_TOKENS),),
            finish_reason="stop",
            attempts=1,
        )


def policies_of(task: Task) -> dict[str, RecordedPolicy]:
    """One policy, as the rollout makes it for an episode."""
    play = Play(task=task, client=AtOnce(), recording=Recording(), budget=Budget())
    return {
        "solver": RecordedPolicy(
            play, policy="solver", sampling=Sampling(max_new_tokens=_TOKENS), tokenizer=ToyTokenizer()
        )
    }


def task_of(number: int) -> Task:
    return Task(
        id=f"i/s/0/{number}/0",
        group_id=f"i/s/0/{number}",
        group_size=1,
        source="s",
        env="game",
        payload={},
        seed=number,
    )


async def direct(turns: int) -> list[float]:
    """Seconds of each turn without the gateway."""
    policy = policies_of(task_of(0))["solver"]
    history, took = [ChatMessage("user", "go on")], []
    for _ in range(turns):
        begun = time.perf_counter()
        reply = await policy.chat(history)
        took.append(time.perf_counter() - begun)
        history += [ChatMessage("assistant", reply.text), ChatMessage("user", "go on")]
    return took


async def play(http: aiohttp.ClientSession, url: str, turns: int) -> list[float]:
    """One session over HTTP; seconds of each turn."""

    async def post(path: str, key: str, body: dict[str, Any]) -> Any:
        async with http.post(url + path, json=body, headers={"Authorization": f"Bearer {key}"}) as answer:
            assert answer.status == 200, await answer.text()
            return json.loads(await answer.read())

    session = await post("/sessions", _KEY, {"env": "game", "wait_s": 60})
    history: list[dict[str, str]] = [{"role": "user", "content": "go on"}]
    took = []
    for _ in range(turns):
        begun = time.perf_counter()
        answer = await post("/v1/chat/completions", session["key"], {"model": "solver", "messages": history})
        took.append(time.perf_counter() - begun)
        history += [answer["choices"][0]["message"], {"role": "user", "content": "go on"}]
    await post("/reward", session["key"], {"reward": 1.0})
    return took


async def together(sessions: int, turns: int) -> tuple[list[float], float, float]:
    """`sessions` at once: seconds of each turn, wall seconds and CPU seconds of all."""
    registry = Sessions()
    registry.served.add("game")
    env = SessionEnv(ToyEnv(), registry)
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        Gateway(registry, key=_KEY).listen(Listening(address="127.0.0.1:0")) as url,
        aiohttp.ClientSession(connector=connector) as http,
        asyncio.TaskGroup() as group,
    ):
        begun, cpu = time.perf_counter(), time.process_time()
        for number in range(sessions):
            task = task_of(number)
            group.create_task(env.run(task, policies_of(task)))
        played = [group.create_task(play(http, url, turns)) for _ in range(sessions)]
        await asyncio.wait(played)
        wall, spent = time.perf_counter() - begun, time.process_time() - cpu
    return [each for one in played for each in one.result()], wall, spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=300, help="at once")
    parser.add_argument("--turns", type=int, default=4, help="per session")
    options = parser.parse_args()
    alone = statistics.median(asyncio.run(direct(200)))
    one, _, _ = asyncio.run(together(1, 200))
    many, wall, spent = asyncio.run(together(options.sessions, options.turns))
    lines = {
        "a turn, direct, p50 ms": alone * 1000,
        "a turn, through the gateway, p50 ms": statistics.median(one) * 1000,
        "added, p50 ms": (statistics.median(one) - alone) * 1000,
        f"sessions/s, {options.sessions} at once": options.sessions / wall,
        "turns/s": len(many) / wall,
        "a turn then, p50 ms": statistics.median(many) * 1000,
        "CPU ms per turn, client included": spent / len(many) * 1000,
    }
    for name, value in lines.items():
        print(f"{name:>40}  {value:8.2f}")  # noqa: T201


if __name__ == "__main__":
    main()
