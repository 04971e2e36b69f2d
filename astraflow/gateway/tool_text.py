"""Tool calls as text, in the form that Hermes and Qwen models are trained on: `<tool_call>{"name": …}</tool_call>`.

It repairs nothing: what isn't a whole call in valid JSON stays text, so that no tool runs on arguments that the policy
didn't write. Invariant: `split(text)` leaves out of the text exactly the blocks that it returns as calls.
"""

import json
import re
from typing import Any

import msgspec

_BLOCK = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


def split(text: str) -> tuple[str, list[tuple[str, str]]]:
    """(the text without calls, [(name, arguments as JSON)]) of a reply."""
    calls: list[tuple[str, str]] = []

    def take(block: re.Match[str]) -> str:
        call = _call_of(block[1])
        if call is None:
            return block[0]
        calls.append(call)
        return ""

    rest = _BLOCK.sub(take, text)
    return (rest.strip(), calls) if calls else (text, [])


def _call_of(block: str) -> tuple[str, str] | None:
    try:
        value: Any = msgspec.json.decode(block)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(name := value.get("name"), str) or not name:
        return None
    arguments = value.get("arguments", {})
    return (name, json.dumps(arguments, ensure_ascii=False)) if isinstance(arguments, dict) else None


def write(name: str, arguments: str) -> str:
    """A call as the policy would write it, for a history in which somebody else made it."""
    return f'<tool_call>\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {arguments}}}\n</tool_call>'


def canonical(arguments: str) -> str:
    """The same text for the same arguments, however a client writes their JSON."""
    try:
        value = msgspec.json.decode(arguments)
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except (msgspec.DecodeError, RecursionError):
        return arguments.strip()
