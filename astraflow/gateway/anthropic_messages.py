"""Anthropic's `messages` and `count_tokens`: requests read, answers written, whole or as a stream.

It asks nobody. Invariant: the blocks of an answer, sent back, are read as the message that they were.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from astraflow.gateway.events import event, pieces
from astraflow.gateway.openai_chat import check_limit, refuse
from astraflow.gateway.vocabulary import Answer, Ask, Said, ToolCall

_STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class _Inner(Struct):
    type: str
    text: str = ""


class _Block(Struct):
    type: str
    text: str = ""
    id: str = ""
    name: str = ""
    input: Any = None
    tool_use_id: str = ""
    content: str | list[_Inner] | None = None


class _Message(Struct):
    role: str
    content: str | list[_Block]


class _Tool(Struct):
    name: str
    input_schema: dict[str, Any] | None = None
    description: str | None = None


class CountRequest(Struct, kw_only=True):
    """`POST messages/count_tokens`."""

    model: str
    messages: list[_Message]
    system: str | list[_Block] | None = None
    tools: list[_Tool] | None = None
    tool_choice: dict[str, Any] | None = None

    def history(self) -> tuple[Said, ...]:
        """The conversation. Raises RefusalError."""
        if not self.messages:
            refuse("messages is empty")
        system = [Said(role="system", text=text)] if (text := _text(self.system or "")) else []
        return (*system, *(said for message in self.messages for said in _said(message)))

    def offered(self) -> tuple[dict[str, Any], ...]:
        """The tools in OpenAI's form. Raises RefusalError."""
        choice = (self.tool_choice or {}).get("type", "auto")
        if choice == "tool":
            refuse("tool_choice by name is not offered; use auto, any or none, or give only that tool")
        return () if choice == "none" else tuple(_tool(tool) for tool in self.tools or ())


class MessagesRequest(CountRequest, kw_only=True):
    """`POST messages`."""

    max_tokens: int
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None

    def ask(self) -> Ask:
        """Raises RefusalError."""
        check_limit(self.max_tokens)
        if self.top_k:
            refuse("top_k is not offered: what is trained is sampled from the policy as it is")
        return Ask(
            model=self.model,
            messages=self.history(),
            tools=self.offered(),
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            stop=tuple(self.stop_sequences or ()),
            stream=bool(self.stream),
        )


def _tool(tool: _Tool) -> dict[str, Any]:
    if tool.input_schema is None:
        refuse(f"tool {tool.name} has no input_schema; tools that run at the server are not offered")
    function = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
    return {"type": "function", "function": function}


def _text(content: str | Sequence[_Block | _Inner]) -> str:
    if isinstance(content, str):
        return content
    for block in content:
        if block.type != "text":
            refuse(f"content of type {block.type!r} is not offered; the policies read text")
    return "".join(block.text for block in content)


def _said(message: _Message) -> Iterator[Said]:
    """One message; the results in a user's message are messages of their own, before its text."""
    if message.role not in ("user", "assistant"):
        refuse(f"role is {message.role!r}, expected user or assistant")
    if isinstance(message.content, str):
        yield Said(role=message.role, text=message.content)
        return
    known = {"user": ("tool_result",), "assistant": ("tool_use", "thinking", "redacted_thinking")}[message.role]
    text = _text([block for block in message.content if block.type not in known])
    calls = tuple(
        ToolCall(id=block.id, name=block.name, arguments=msgspec.json.encode(block.input or {}).decode())
        for block in message.content
        if block.type == "tool_use"
    )
    results = [block for block in message.content if block.type == "tool_result"]
    for block in results:
        yield Said(role="tool", text=_text(block.content or ""), call_id=block.tool_use_id)
    if text or not results:
        yield Said(role=message.role, text=text, calls=calls)


def messages_answer(answer: Answer, ask: Ask) -> dict[str, Any]:
    """The whole answer of `messages`."""
    usage = {"input_tokens": answer.prompt_tokens, "output_tokens": len(answer.tokens)}
    return _message(answer) | {
        "content": _blocks(answer),
        "stop_reason": _STOPS[answer.finish],
        "stop_sequence": None,
        "usage": usage,
    }


def messages_events(answer: Answer, ask: Ask) -> Iterator[bytes]:
    """The same as a stream of named events."""

    def told(kind: str, **fields: Any) -> bytes:
        return event({"type": kind, **fields}, name=kind)

    usage = {"input_tokens": answer.prompt_tokens, "output_tokens": 0}
    begun: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    yield told("message_start", message=_message(answer) | begun)
    for at, block in enumerate(_blocks(answer)):
        if block["type"] == "text":
            yield told("content_block_start", index=at, content_block=block | {"text": ""})
            deltas = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
        else:
            yield told("content_block_start", index=at, content_block=block | {"input": {}})
            arguments = msgspec.json.encode(block["input"]).decode()
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces(arguments)]
        for delta in deltas:
            yield told("content_block_delta", index=at, delta=delta)
        yield told("content_block_stop", index=at)
    ended = {"stop_reason": _STOPS[answer.finish], "stop_sequence": None}
    yield told("message_delta", delta=ended, usage={"output_tokens": len(answer.tokens)})
    yield told("message_stop")


def _message(answer: Answer) -> dict[str, Any]:
    return {"id": f"msg_{answer.id}", "type": "message", "role": "assistant", "model": answer.model}


def _blocks(answer: Answer) -> list[dict[str, Any]]:
    text = [{"type": "text", "text": answer.text}] if answer.text or not answer.calls else []
    return text + [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": msgspec.json.decode(call.arguments)}
        for call in answer.calls
    ]
