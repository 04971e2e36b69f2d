"""A policy that says what it is told to: the environments' seam, without an engine."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from astraflow.envs import ChatMessage, Reply
from astraflow.messages import Sampling, Task


def reply(text: str, finish_reason: str = "stop") -> Reply:
    """What a policy answered."""
    tokens = np.zeros(1, np.int32)
    return Reply(text=text, tokens=tokens, logprobs=np.zeros(1, np.float32), versions=(), finish_reason=finish_reason)


class ScriptedPolicy:
    """Gives the same reply to everything and keeps what it was asked."""

    def __init__(self, text: str, finish_reason: str = "stop") -> None:
        self.reply = reply(text, finish_reason)
        self.asked: list[Sequence[ChatMessage]] = []
        self.prompts: list[NDArray[np.int32]] = []

    @property
    def cut_off(self) -> bool:
        return self.reply.finish_reason == "length"

    def spawn(self, role: str = "") -> "ScriptedPolicy":
        return ScriptedPolicy(self.reply.text, self.reply.finish_reason)

    async def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        sampling: Sampling | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Reply:
        self.asked.append(messages)
        return self.reply

    async def generate(self, tokens: NDArray[np.int32], *, sampling: Sampling | None = None) -> Reply:
        self.prompts.append(tokens)
        return self.reply


def task(payload: Mapping[str, Any], *, member: int = 0) -> Task:
    """A task with this payload."""
    return Task(
        id=f"run/source/0/0/{member}",
        group_id="run/source/0/0",
        group_size=4,
        member=member,
        source="source",
        env="env",
        payload=dict(payload),
        seed=0,
    )
