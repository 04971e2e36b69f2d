"""The environment protocol: what a rollout runs for each task.

An environment knows nothing of the bus: it gets a task and policies to call, and returns an outcome.
Most environments are single-turn: subclass `SingleTurnEnv` and write `task`, `prompt` and `grade`.
"""

from abc import ABC, abstractmethod
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

    text: str  # decoded without special tokens
    tokens: NDArray[np.int32]  # [C]
    logprobs: NDArray[np.float32]  # [C]
    versions: tuple[VersionSpan, ...]
    finish_reason: str  # stop | length | abort

    @property
    def ended(self) -> bool:
        """The policy stopped by itself."""
        return self.finish_reason == "stop"


class PolicyHandle(Protocol):
    """One policy, as an environment sees it. Every call is recorded as a turn of the episode."""

    async def chat(self, messages: Sequence[ChatMessage], *, sampling: Sampling | None = None) -> Reply:
        """Render the messages with the policy's chat template (where it has one), generate, decode."""
        ...

    async def generate(self, tokens: NDArray[np.int32], *, sampling: Sampling | None = None) -> Reply:
        """Token in, token out."""
        ...


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How an episode went."""

    rewards: Mapping[str, float]  # per policy
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


@dataclass(frozen=True, kw_only=True)
class Grade:
    """A judged answer. `reward` must be finite."""

    reward: float
    correct: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    reason: Reason = Reason.OK


class SingleTurnEnv(ABC):
    """One prompt, one reply, one reward, for one policy.

    Args:
        policy: the policy that answers; "" = the only one of the run.
    """

    size: int | None = None

    def __init__(self, *, policy: str = "") -> None:
        self.policy = policy

    @abstractmethod
    def task(self, index: int) -> dict[str, Any]:
        """The payload of task `index`."""

    @abstractmethod
    def prompt(self, payload: Mapping[str, Any]) -> Sequence[ChatMessage]:
        """What the policy is asked."""

    @abstractmethod
    def grade(self, payload: Mapping[str, Any], reply: Reply) -> Grade:
        """Judge the reply. Runs in a worker thread; raise EnvError if judging itself fails."""
