"""What the gateway's dialects have in common: what is asked, and what is answered.

No HTTP and no policies. Invariant: an `Answer` holds everything that a client sees of a turn, so that sending it twice
says the same twice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """A call of one of the client's functions."""

    id: str
    name: str
    arguments: str  # JSON, an object


@dataclass(frozen=True, kw_only=True)
class Said:
    """One message of a history as a client tells it."""

    role: str  # system | user | assistant | tool
    text: str = ""
    calls: tuple[ToolCall, ...] = ()  # of an assistant
    call_id: str = ""  # of a tool: the call that it answers


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One turn that a client wants. `None` = the policy's own setting."""

    model: str
    messages: tuple[Said, ...] = ()
    prompt: str | tuple[int, ...] | None = None  # raw text or token ids; None: a chat
    tools: tuple[Mapping[str, Any], ...] = ()  # JSON schemas in OpenAI's form
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    wants_usage: bool = False  # at the end of a stream
    wants_logprobs: bool = False


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One turn that was sampled. `tokens` and `logprobs` are the record, the rest is a view."""

    id: str
    model: str
    text: str
    finish: str  # stop | length | tool_calls
    created: int  # unix seconds
    calls: tuple[ToolCall, ...] = ()
    prompt_tokens: int = 0
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = field(default=(), repr=False)
