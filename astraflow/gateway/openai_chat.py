"""OpenAI's `chat/completions` and `completions`: requests read, answers written, whole or as a stream.

It asks nobody. What would change the meaning of an answer and isn't offered is refused; keys that it doesn't know are
ignored. Invariant: the pieces of a stream put together are the whole answer.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from astraflow.errors import RefusalError
from astraflow.gateway.events import event, pieces
from astraflow.gateway.vocabulary import Answer, Ask, Said, ToolCall

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


class Part(Struct):
    """A piece of a message's content."""

    type: str
    text: str = ""


class _Function(Struct):
    name: str
    arguments: str = "{}"


class _Call(Struct):
    function: _Function
    id: str = ""


class _Message(Struct):
    role: str
    content: str | list[Part] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None


class _Tool(Struct):
    function: dict[str, Any]
    type: str = "function"


class _StreamOptions(Struct):
    include_usage: bool = False


class _Format(Struct):
    type: str = "text"


class _Sampled(Struct):
    """What both requests have."""

    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None

    def check(self) -> None:
        """Raises RefusalError for what is not offered."""
        if self.n not in (None, 1):
            refuse(f"n is {self.n}; one reply is given per request, so ask {self.n} times")
        if self.frequency_penalty or self.presence_penalty or self.logit_bias:
            refuse("penalties and logit_bias are not offered: what is trained is sampled from the policy as it is")
        check_limit(self.max_tokens)

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class ChatRequest(_Sampled, kw_only=True):
    """`POST chat/completions`."""

    messages: list[_Message]
    tools: list[_Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    max_completion_tokens: int | None = None
    response_format: _Format | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    def ask(self) -> Ask:
        """Raises RefusalError."""
        self.check()
        check_limit(self.max_completion_tokens)
        if self.top_logprobs:
            refuse("top_logprobs is not offered; logprobs = true gives those of the sampled tokens")
        if self.response_format and self.response_format.type != "text":
            refuse(f"response_format {self.response_format.type} is not offered; ask for the form in the prompt")
        if not self.messages:
            refuse("messages is empty")
        if isinstance(self.tool_choice, dict):
            refuse("tool_choice by name is not offered; use auto, required or none, or give only that tool")
        tools = () if self.tool_choice == "none" else tuple(self.tools or ())
        return Ask(
            model=self.model,
            messages=tuple(_said(message) for message in self.messages),
            tools=tuple({"type": "function", "function": tool.function} for tool in tools),
            max_tokens=self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            stop=self.stops,
            stream=bool(self.stream),
            wants_usage=bool(self.stream_options and self.stream_options.include_usage),
            wants_logprobs=bool(self.logprobs),
        )


class CompletionRequest(_Sampled, kw_only=True):
    """`POST completions`. `prompt`: one text, or one list of token ids."""

    prompt: str | list[int | str]
    echo: bool | None = None
    logprobs: int | None = None

    def ask(self) -> Ask:
        """Raises RefusalError."""
        self.check()
        if self.echo:
            refuse("echo is not offered")
        if self.logprobs:
            refuse("logprobs is not offered here; chat/completions gives those of the sampled tokens")
        prompt: str | tuple[int, ...]
        if isinstance(self.prompt, str):
            prompt = self.prompt
        elif len(self.prompt) == 1 and isinstance(self.prompt[0], str):
            prompt = self.prompt[0]
        else:
            ids = [each for each in self.prompt if isinstance(each, int) and 0 <= each < 2**31]
            if not ids or len(ids) != len(self.prompt):
                refuse("prompt is neither one text nor one list of token ids")
            prompt = tuple(ids)
        return Ask(
            model=self.model,
            prompt=prompt,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            stop=self.stops,
            stream=bool(self.stream),
            wants_usage=bool(self.stream_options and self.stream_options.include_usage),
        )


def refuse(why: str) -> None:
    """Raises RefusalError, always."""
    raise RefusalError(400, why, code="invalid_request")


def check_limit(max_tokens: int | None) -> None:
    """Raises RefusalError for a limit that means nothing."""
    if max_tokens is not None and max_tokens < 1:
        refuse(f"the limit of tokens is {max_tokens}, expected at least 1")


def text_of(content: str | Sequence[Part] | None) -> str:
    """Content as one text. Raises RefusalError for a part that isn't text."""
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.type not in ("text", "input_text", "output_text", "refusal"):
            refuse(f"content of type {part.type!r} is not offered; the policies read text")
    return "".join(part.text for part in content)


def role_of(role: str) -> str:
    """The role as chat templates know it. Raises RefusalError."""
    if role not in ROLES:
        refuse(f"role is {role!r}, expected one of {', '.join(ROLES)}")
    return ROLES[role]


def _said(message: _Message) -> Said:
    return Said(
        role=role_of(message.role),
        text=text_of(message.content),
        calls=tuple(
            ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)
            for call in message.tool_calls or ()
        ),
        call_id=message.tool_call_id or "",
    )


def usage_of(answer: Answer) -> dict[str, int]:
    """Tokens, as OpenAI counts them."""
    sampled = len(answer.tokens)
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": sampled,
        "total_tokens": answer.prompt_tokens + sampled,
    }


def chat_answer(answer: Answer, ask: Ask) -> dict[str, Any]:
    """The whole answer of `chat/completions`."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or (None if answer.calls else "")}
    if answer.calls:
        message["tool_calls"] = [_call(call) for call in answer.calls]
    choice = {"index": 0, "message": message, "finish_reason": answer.finish, "logprobs": _logprobs(answer, ask)}
    return _envelope(answer, "chat.completion", [choice]) | {"usage": usage_of(answer)}


def chat_events(answer: Answer, ask: Ask) -> Iterator[bytes]:
    """The same as a stream: the role, text and calls in pieces, how it ended, tokens if they are wanted."""

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return event(_envelope(answer, "chat.completion.chunk", [choice]))

    yield chunk({"role": "assistant", "content": "" if answer.text or not answer.calls else None})
    for piece in pieces(answer.text):
        yield chunk({"content": piece})
    for at, call in enumerate(answer.calls):
        begun = {"index": at, **_call(call), "function": {"name": call.name, "arguments": ""}}
        yield chunk({"tool_calls": [begun]})
        for piece in pieces(call.arguments):
            yield chunk({"tool_calls": [{"index": at, "function": {"arguments": piece}}]})
    yield chunk({}, answer.finish)
    yield from _end(answer, ask, "chat.completion.chunk")


def completion_answer(answer: Answer, ask: Ask) -> dict[str, Any]:
    """The whole answer of `completions`."""
    choice = {"index": 0, "text": answer.text, "finish_reason": answer.finish, "logprobs": None}
    return _envelope(answer, "text_completion", [choice]) | {"usage": usage_of(answer)}


def completion_events(answer: Answer, ask: Ask) -> Iterator[bytes]:
    """The same as a stream."""
    for text, finish in [*((piece, None) for piece in pieces(answer.text)), ("", answer.finish)]:
        choice = {"index": 0, "text": text, "finish_reason": finish, "logprobs": None}
        yield event(_envelope(answer, "text_completion", [choice]))
    yield from _end(answer, ask, "text_completion")


def _end(answer: Answer, ask: Ask, kind: str) -> Iterator[bytes]:
    if ask.wants_usage:
        yield event(_envelope(answer, kind, []) | {"usage": usage_of(answer)})
    yield b"data: [DONE]\n\n"


def _envelope(answer: Answer, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{answer.id}",
        "object": kind,
        "created": answer.created,
        "model": answer.model,
        "choices": choices,
    }


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _logprobs(answer: Answer, ask: Ask) -> dict[str, Any] | None:
    """Of the sampled tokens, which are named by their ids: a token need not be text."""
    if not ask.wants_logprobs:
        return None
    both = zip(answer.tokens, answer.logprobs, strict=True)
    return {
        "content": [
            {"token": f"token_id:{token}", "logprob": logprob, "bytes": None, "top_logprobs": []}
            for token, logprob in both
        ]
    }
