"""A gateway on a real port, over sessions whose policy says what the test wants, in tokens of a real tokenizer."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from astraflow.actors.rollout.budget import Budget
from astraflow.actors.rollout.call import Call, Completion
from astraflow.actors.rollout.handle import Play, RecordedPolicy
from astraflow.actors.rollout.recording import Recording
from astraflow.envs.base import Environment, Outcome
from astraflow.envs.tiny_env import TinyEnv
from astraflow.gateway.environment import SessionEnv
from astraflow.gateway.launch import Command
from astraflow.gateway.server import Gateway, Listening
from astraflow.gateway.session import Session
from astraflow.gateway.sessions import Sessions
from astraflow.messages import Sampling, Task, VersionSpan
from astraflow.models.tokenizer import ChatTokenizer, load_tokenizer
from tests.models import shapes

RUN_KEY = "rk-of-the-tests-only"
ADD = {
    "name": "add",
    "description": "Add two numbers.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
}
CALLS_ADD = 'I add them.\n<tool_call>\n{"name": "add", "arguments": {"a": 3, "b":  4}}\n</tool_call>'


def tokenizer_in(folder: Path) -> ChatTokenizer:
    """A byte-level tokenizer with a ChatML template."""
    build, settings, config = shapes.SHAPES["qwen2"]
    return load_tokenizer(shapes.write(folder, build(), {**settings, "chat_template": shapes.CHATML}, config))


@dataclass
class Says:
    """Completes calls with texts from a list; an exception in it is raised. `gate`: each call waits until it is set."""

    tokenizer: ChatTokenizer
    texts: list[str | Exception] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    async def generate(self, call: Call) -> Completion:
        self.calls.append(call)
        text = self.texts.pop(0)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        if isinstance(text, Exception):
            raise text
        ids = [*self.tokenizer.encode(text), self.tokenizer.eos_token_ids[0]][: call.sampling.max_new_tokens]
        ended = ids[-1] == self.tokenizer.eos_token_ids[0]
        return Completion(
            tokens=np.array(ids, np.int32),
            logprobs=np.full(len(ids), -0.25, np.float32),
            versions=(VersionSpan(version=1, start=0, end=len(ids)),),
            finish_reason="stop" if ended else "length",
            attempts=1,
        )


@dataclass
class World:
    """One gateway and one environment behind it."""

    says: Says
    sessions: Sessions
    env: SessionEnv
    url: str = ""
    recording: Recording = field(default_factory=Recording)
    http: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def session(self, *texts: str | Exception, **task: Any) -> AsyncIterator["Played"]:
        """An open session; what it came to is in `outcome` after the block."""
        self.says.texts += texts
        played = Played(self)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(played.play(**task))
            taken = await self.sessions.take("game", within_s=30)
            played.session = taken
            try:
                yield played
                if not taken.over.is_set():
                    running.cancel()
            except BaseException:
                running.cancel()
                raise

    async def post(
        self, path: str, body: Any, key: str, *, data: bytes | None = None, **headers: str
    ) -> tuple[int, Any]:
        """Status and JSON of an answer."""
        assert self.http is not None
        sent = json.dumps(body).encode() if data is None else data
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        given = {"Authorization": f"Bearer {key}", **named} if key else named
        async with self.http.post(f"{self.url}{path}", data=sent, headers=given) as answer:
            return answer.status, json.loads(await answer.text())


@dataclass
class Played:
    """One episode through the gateway."""

    world: World
    session: Session = None  # type: ignore[assignment]  # set before anybody sees it
    outcome: Outcome | None = None
    error: BaseException | None = None

    @property
    def key(self) -> str:
        return self.session.key

    async def play(self, **task: Any) -> None:
        """As the rollout plays it."""
        try:
            self.outcome = await self.world.env.run(*episode(self.world, **task))
        except Exception as exc:  # noqa: BLE001 - the rollout's boundary
            self.error = exc


def episode(world: World, *, feeds: tuple[str, ...] = (), max_tokens: int = 0) -> tuple[Task, dict[str, Any]]:
    """A task and its policies."""
    fields = {"id": "i/s/0/0/1", "group_id": "i/s/0/0", "group_size": 2, "member": 1, "source": "s", "env": "game"}
    payload = {"index": 0, "question": "3+4=", "answer": "7"}
    task = Task(**{**fields, "payload": payload, "seed": 7, "feeds": feeds})
    play = Play(task=task, client=world.says, recording=world.recording, budget=Budget(max_tokens=max_tokens))
    sampling = Sampling(max_new_tokens=200)
    solver = RecordedPolicy(play, policy="solver", sampling=sampling, tokenizer=world.says.tokenizer)
    return task, {"solver": solver}


@asynccontextmanager
async def world(folder: Path, *, command: str = "", env: Environment | None = None) -> AsyncIterator[World]:
    """A gateway that listens."""
    sessions = Sessions()
    sessions.served.add("game")
    started = Command(command) if command else None
    made = SessionEnv(env or TinyEnv(task="add"), sessions, started)
    found = World(Says(tokenizer_in(folder)), sessions, made)
    gateway = Gateway(sessions, key=RUN_KEY)
    async with gateway.listen(Listening(address="127.0.0.1:0")) as url, aiohttp.ClientSession() as http:
        found.url, found.http = url, http
        if started:
            started.url = url
        yield found


Ask = Callable[..., dict[str, Any]]


def chat(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A body of chat/completions."""
    return {"model": "solver", "messages": list(messages), **more}


USER = {"role": "user", "content": "What is 3+4?"}
