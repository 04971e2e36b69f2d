"""One episode as a client of the gateway sees it: a key, a task, policies to call, and a reward in the end.

    open ──reward, end, cancel──▶ ended      open ──deadline, drain, a policy that can't answer──▶ lost

It knows no HTTP; `environment` makes an outcome of how it ended. Invariant: it ends once, and what is asked of it after
that is refused in words.
"""

import asyncio
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from astraflow import clock
from astraflow.concurrency import Background
from astraflow.envs.base import ChatMessage, PolicyHandle, Reply
from astraflow.errors import BudgetError, BusError, EngineError, EnvError, RefusalError
from astraflow.gateway import tool_text
from astraflow.gateway.calls import Calls
from astraflow.gateway.sampled import SampledForms
from astraflow.gateway.vocabulary import Answer, Ask, Said, ToolCall
from astraflow.messages import Reason, Sampling, Task
from astraflow.named import nearest

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a client says that an episode went. `rewards` empty: the environment grades the answer."""

    rewards: Mapping[str, float] = field(default_factory=dict)  # per policy or role
    parts: Mapping[str, float] = field(default_factory=dict)
    correct: float | None = None  # None: no such notion
    answer: str | None = None  # None: the newest reply
    reason: Reason = Reason.OK
    error: str = ""


class Session:
    """One attempt at a task. Its calls live in `background`."""

    def __init__(
        self,
        task: Task,
        policies: Mapping[str, PolicyHandle],
        messages: Sequence[ChatMessage],
        background: Background,
    ) -> None:
        self.key = f"sk-{secrets.token_urlsafe(24)}"
        self.task = task
        self.messages = messages  # what the environment asks
        self.ending: Ending | None = None
        self.broken: EngineError | BusError | None = None  # why no policy could answer
        self.over = asyncio.Event()
        self.newest: Reply | None = None
        self.asked: set[str] = set()  # policies and roles
        self.clients: set[str] = set()
        self.overspent = False
        self._policies = policies
        self._calls = Calls(background)
        self._sampled = SampledForms()
        self._numbers = 0
        self._why = ""

    @property
    def models(self) -> list[str]:
        """What `model` may name: the policies and roles."""
        return sorted(self._policies)

    async def answer(self, ask: Ask, *, digest: bytes, retries: int, client: str) -> Answer:
        """One turn. Raises RefusalError."""
        self.check_open()
        self._handle(ask.model)
        if name := _NAME.match(client):
            self.clients.add(name[0].lower())
        return await self._calls.answer(digest, retries, lambda: self._sample(ask))

    async def count(self, model: str, history: Sequence[Said], tools: Sequence[Mapping[str, Any]]) -> int:
        """Tokens of a prompt that would be asked. Raises RefusalError."""
        self.check_open()
        try:
            return await self._handle(model).count([self._sampled.message(said) for said in history], tools=tools)
        except EnvError as exc:
            raise RefusalError(400, str(exc), code="invalid_request") from exc

    def told(self) -> dict[str, Any]:
        """The task, for who plays it."""
        return {
            "id": self.task.id,
            "env": self.task.env,
            "payload": self.task.payload,
            "messages": [{"role": each.role, "content": each.content} for each in self.messages],
            "models": self.models,
        }

    def end(self, ending: Ending) -> None:
        """Say how it went; the same twice is once. Raises RefusalError: it ended otherwise, or a name is unknown."""
        if self.ending is not None and self.ending == ending:
            return
        self.check_open()
        if unknown := set(ending.rewards) - set(self._policies):
            name = min(unknown)
            raise RefusalError(
                400, f"there is no policy or role {name!r} here{nearest(name, self._policies)}", code="unknown_model"
            )
        self.ending = ending
        self.close("it has its reward" if ending.reason is Reason.OK else "it was cancelled")

    def close(self, why: str) -> None:
        """Nothing more comes of it."""
        if not self.over.is_set():
            self._why = why
            self.over.set()
            self._calls.close(self._refusal())

    def check_open(self) -> None:
        """Raises RefusalError if it is over."""
        if self.over.is_set():
            raise self._refusal()

    def _refusal(self) -> RefusalError:
        status, code = (409, "session_ended") if self.ending is not None else (410, "session_lost")
        return RefusalError(status, f"this session is over: {self._why}; take another one", code=code)

    def _handle(self, model: str) -> PolicyHandle:
        if model not in self._policies:
            raise RefusalError(
                404,
                f"there is no model {model!r} here{nearest(model, self._policies)}; model is one of "
                f"{', '.join(self.models)}",
                code="model_not_found",
            )
        return self._policies[model]

    async def _sample(self, ask: Ask) -> Answer:
        handle = self._handle(ask.model)
        sampling = _sampling(ask, handle.sampling)
        try:
            if ask.prompt is None:
                messages = [self._sampled.message(said) for said in ask.messages]
                reply = await handle.chat(messages, sampling=sampling, tools=ask.tools)
            elif isinstance(ask.prompt, str):
                reply = await handle.complete(ask.prompt, sampling=sampling)
            else:
                reply = await handle.generate(np.array(ask.prompt, np.int32), sampling=sampling)
        except BudgetError as exc:  # as any model that runs into a limit; an error would end most agents
            if self.overspent:
                raise RefusalError(400, f"{exc}; end the episode", code="budget_spent") from exc
            self.overspent = True
            return self._numbered(ask, "", (), finish="length")
        except EnvError as exc:
            raise RefusalError(400, str(exc), code="invalid_request") from exc
        except (EngineError, BusError) as exc:
            self.broken = exc
            self.close(f"no policy can answer: {exc}")
            raise self._refusal() from exc
        self.newest = reply
        self.asked.add(ask.model)
        return self._read(ask, reply)

    def _read(self, ask: Ask, reply: Reply) -> Answer:
        """A reply as the client sees it: cut at its stop strings, its calls parsed."""
        shown, stopped_at = _cut(reply.text, ask.stop)
        text, found = tool_text.split(shown) if ask.tools else (shown, [])
        calls = tuple(
            ToolCall(id=f"call_{self._numbers}_{at}", name=name, arguments=arguments)
            for at, (name, arguments) in enumerate(found)
        )
        if ask.prompt is None:
            self._sampled.add(reply.text, text, calls, stopped_at=stopped_at)
        finish = "tool_calls" if calls else "stop" if stopped_at or reply.ended else "length"
        return self._numbered(ask, text, calls, finish=finish, reply=reply)

    def _numbered(
        self, ask: Ask, text: str, calls: tuple[ToolCall, ...], *, finish: str, reply: Reply | None = None
    ) -> Answer:
        number, self._numbers = self._numbers, self._numbers + 1
        return Answer(
            id=f"{self.task.id.replace('/', '-')}-{self.task.attempt}-{number}",
            model=ask.model,
            text=text,
            calls=calls,
            finish=finish,
            created=int(clock.wall()),
            prompt_tokens=reply.prompt_tokens if reply else 0,
            tokens=tuple(reply.tokens.tolist()) if reply else (),
            logprobs=tuple(reply.logprobs.tolist()) if reply else (),
        )


def _sampling(ask: Ask, own: Sampling) -> Sampling:
    """The policy's own sampling, where the client says nothing else. A limit of tokens never goes above it."""
    limit = own.max_new_tokens if ask.max_tokens is None else min(ask.max_tokens, own.max_new_tokens)
    temperature = own.temperature if ask.temperature is None else ask.temperature
    top_p = own.top_p if ask.top_p is None else ask.top_p
    stop = tuple(text for text in ask.stop if text) or own.stop
    return msgspec.structs.replace(own, max_new_tokens=limit, temperature=temperature, top_p=top_p, stop=stop)


def _cut(text: str, stops: Sequence[str]) -> tuple[str, str]:
    """(the text before the first stop string, that string); the whole text and "" if there is none."""
    found = [(at, stop) for stop in stops if stop and (at := text.find(stop)) >= 0]
    if not found:
        return text, ""
    at, stop = min(found, key=lambda each: each[0])
    return text[:at], stop
