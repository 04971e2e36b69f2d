"""The environment protocol: what a rollout runs for each task.

An environment knows nothing of the bus: it gets a task and policies to call, and returns an outcome.
Most environments are single-turn (`single_turn.py`); for more there are agents (`agents.py`).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from astraflow.messages import Reason, Sampling, Task, VersionSpan


@dataclass(frozen=True)
class ChatMessage:
    """One message of a conversation, as chat templates want it."""

    role: str  # system | user | assistant | tool
    content: str


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a policy answered. Tokens are the record, `text` is a view."""

    text: str  # decoded; of special tokens only those that the policy's `shown_tokens` name
    tokens: NDArray[np.int32]  # [C]
    logprobs: NDArray[np.float32]  # [C]
    versions: tuple[VersionSpan, ...]
    finish_reason: str  # stop | length | abort
    prompt_tokens: int = 0  # that stood before it

    @property
    def ended(self) -> bool:
        """The policy stopped by itself."""
        return self.finish_reason == "stop"

    def says(self, word: str) -> bool:
        """The word, or words, stand in the reply, in capitals or not."""
        return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", self.text, re.IGNORECASE) is not None


class PolicyHandle(Protocol):
    """One policy in one role, as an environment sees it. Every call is recorded as a turn of the episode.

    A conversation that is sent back with more messages goes on where it was, token for token. Calls may run side by
    side. Each raises BudgetError when the episode has spent its calls or tokens, or has filled the model's context (a
    ContextError, which is one). A reply gets no more tokens than the context has left.

    `sampling` of a call goes with its tokens into training. Where the policy is trained on what it says, top-k, top-p
    and greedy sampling are refused with an EnvError; frozen policies and evaluations sample as they like.
    """

    @property
    def cut_off(self) -> bool:
        """The newest reply ran out of tokens."""
        ...

    @property
    def sampling(self) -> Sampling:
        """What a call samples with that doesn't say otherwise."""
        ...

    async def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        sampling: Sampling | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Reply:
        """Render the messages with the policy's chat template (where it has one), generate, decode.

        Args:
            tools: JSON schemas of functions that the model may call, for templates that know them.
        """
        ...

    async def generate(self, tokens: NDArray[np.int32], *, sampling: Sampling | None = None) -> Reply:
        """Token in, token out."""
        ...

    async def complete(self, text: str, *, sampling: Sampling | None = None) -> Reply:
        """Go on behind the text as it stands, without a chat template."""
        ...

    async def count(self, messages: Sequence[ChatMessage], *, tools: Sequence[Mapping[str, Any]] = ()) -> int:
        """Tokens of the prompt that `chat` would make; nothing is sampled and nothing recorded."""
        ...

    def spawn(self, role: str = "") -> "PolicyHandle":
        """A sub-agent: the same policy with conversations of its own, in a role that can have its own reward."""
        ...


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How an episode went."""

    rewards: Mapping[str, float]  # per policy or role; a role's own goes before its policy's
    correct: float | None = None  # 0..1; None: no such notion here
    parts: Mapping[str, float] = field(default_factory=dict)  # of the reward, for people
    reason: Reason = Reason.OK
    error: str = ""
    prompt: str = ""  # readable
    answer: str = ""  # readable, the expected one
    metrics: Mapping[str, float] = field(default_factory=dict)


class Environment(Protocol):
    """Anything that turns a task into an outcome. One instance serves many concurrent episodes."""

    @property
    def size(self) -> int | None:
        """Number of different tasks; None = unlimited."""
        ...

    def task(self, index: int) -> dict[str, Any]:
        """The payload of task `index`: small, JSON-like, equal for equal indices. Called in dataflow.

        Raises EnvError if the index is beyond `size`.
        """
        ...

    async def run(self, task: Task, policies: Mapping[str, PolicyHandle]) -> Outcome:
        """Play one episode. Raises EnvError when the environment, not the policy, failed."""
        ...

    async def close(self) -> None:
        """Free processes and files. Idempotent."""
        ...
