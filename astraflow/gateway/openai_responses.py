"""OpenAI's `responses`, without a memory: the client sends the whole conversation each time.

It asks nobody. Invariant: the items of an answer, sent back as input, are read as the message that they were.
"""

from collections.abc import Iterator
from itertools import count
from typing import Any

from msgspec import Struct

from astraflow.gateway.events import event, pieces
from astraflow.gateway.openai_chat import Part, check_limit, refuse, role_of, text_of
from astraflow.gateway.vocabulary import Answer, Ask, Said, ToolCall


class _Item(Struct):
    type: str = "message"
    role: str = ""
    content: str | list[Part] | None = None
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    output: str | list[Part] | None = None


class _Text(Struct):
    format: dict[str, Any] | None = None


class ResponsesRequest(Struct, kw_only=True):
    """`POST responses`."""

    model: str
    input: str | list[_Item]
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    background: bool | None = None
    text: _Text | None = None

    def ask(self) -> Ask:
        """Raises RefusalError."""
        if self.previous_response_id or self.conversation or self.background:
            refuse("previous_response_id, conversation and background are not offered; send the whole input each time")
        if self.text and self.text.format and self.text.format.get("type", "text") != "text":
            refuse("text.format is not offered; ask for the form in the prompt")
        if isinstance(self.tool_choice, dict):
            refuse("tool_choice by name is not offered; use auto, required or none, or give only that tool")
        check_limit(self.max_output_tokens)
        messages = [Said(role="system", text=self.instructions)] if self.instructions else []
        if isinstance(self.input, str):
            messages.append(Said(role="user", text=self.input))
        else:
            messages += _messages(self.input)
        if not messages:
            refuse("input is empty")
        tools = [] if self.tool_choice == "none" else self.tools or []
        return Ask(
            model=self.model,
            messages=tuple(messages),
            tools=tuple(_tool(tool) for tool in tools),
            max_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            stream=bool(self.stream),
        )


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        refuse(f"tools of type {tool.get('type')!r} are not offered, only functions")
    kept = {key: tool[key] for key in ("name", "description", "parameters", "strict") if tool.get(key) is not None}
    return {"type": "function", "function": kept}


def _messages(items: list[_Item]) -> list[Said]:
    """Items as messages: the text and the calls of one turn are one message of the assistant."""
    messages: list[Said] = []
    for item in items:
        if item.type == "message":
            messages.append(Said(role=role_of(item.role), text=text_of(item.content)))
        elif item.type == "function_call":
            call = ToolCall(id=item.call_id, name=item.name, arguments=item.arguments)
            before = messages.pop() if messages and messages[-1].role == "assistant" else Said(role="assistant")
            messages.append(Said(role="assistant", text=before.text, calls=(*before.calls, call)))
        elif item.type == "function_call_output":
            messages.append(Said(role="tool", text=text_of(item.output), call_id=item.call_id))
        elif item.type != "reasoning":  # some clients send an empty one back
            refuse(f"input of type {item.type!r} is not offered")
    return messages


def responses_answer(answer: Answer, ask: Ask) -> dict[str, Any]:
    """The whole answer."""
    return _response(answer, ask, _items(answer), "incomplete" if answer.finish == "length" else "completed")


def responses_events(answer: Answer, ask: Ask) -> Iterator[bytes]:
    """The same as a stream of named events, which are numbered."""
    numbers = count()

    def told(kind: str, **fields: Any) -> bytes:
        return event({"type": kind, "sequence_number": next(numbers), **fields}, name=kind)

    begun = _response(answer, ask, [], "in_progress")
    yield told("response.created", response=begun)
    yield told("response.in_progress", response=begun)
    for at, item in enumerate(_items(answer)):
        where = {"output_index": at, "item_id": item["id"]}
        if item["type"] == "message":
            yield told("response.output_item.added", output_index=at, item=item | {"content": []})
            part = item["content"][0]
            yield told("response.content_part.added", **where, content_index=0, part=part | {"text": ""})
            for piece in pieces(answer.text):
                yield told("response.output_text.delta", **where, content_index=0, delta=piece, logprobs=[])
            yield told("response.output_text.done", **where, content_index=0, text=answer.text, logprobs=[])
            yield told("response.content_part.done", **where, content_index=0, part=part)
        else:
            yield told("response.output_item.added", output_index=at, item=item | {"arguments": ""})
            for piece in pieces(item["arguments"]):
                yield told("response.function_call_arguments.delta", **where, delta=piece)
            done = {"arguments": item["arguments"], "name": item["name"]}
            yield told("response.function_call_arguments.done", **where, **done)
        yield told("response.output_item.done", output_index=at, item=item)
    whole = responses_answer(answer, ask)
    yield told(f"response.{whole['status']}", response=whole)


def _items(answer: Answer) -> list[dict[str, Any]]:
    status = "incomplete" if answer.finish == "length" else "completed"
    items: list[dict[str, Any]] = []
    if answer.text or not answer.calls:
        content = [{"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}]
        message = {"type": "message", "id": f"msg_{answer.id}", "role": "assistant", "status": status}
        items.append(message | {"content": content})
    for call in answer.calls:
        said = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
        items.append({"type": "function_call", "id": f"fc_{call.id}", "status": status, **said})
    return items


def _response(answer: Answer, ask: Ask, items: list[dict[str, Any]], status: str) -> dict[str, Any]:
    sampled = len(answer.tokens)
    usage = {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": sampled,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answer.prompt_tokens + sampled,
    }
    return {
        "id": f"resp_{answer.id}",
        "object": "response",
        "created_at": answer.created,
        "model": answer.model,
        "status": status,
        "output": items,
        "usage": None if status == "in_progress" else usage,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "error": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": ask.temperature,
        "top_p": ask.top_p,
        "tool_choice": "auto",
        "tools": [{"type": "function", "strict": None, **tool["function"]} for tool in ask.tools],
    }
