"""Tasks and what comes of them: one `Task` attempt ends in exactly one `Episode`.

A trajectory's tokens are append-only: turn k+1's `context_tokens` come right behind turn k's completion, so the whole
token sequence is the concatenation of (context, completion) over the turns. A rewritten history is a new trajectory.
"""

from enum import StrEnum
from typing import Any

import msgspec

from astraflow.messages.arrays import Array
from astraflow.messages.generation import Sampling, VersionSpan
from astraflow.messages.message import Message


class Reason(StrEnum):
    """Why an episode ended. Only `ok`, `policy` and `truncated` carry rewards that may be trained on."""

    OK = "ok"
    POLICY = "policy"  # the policy's own fault, e.g. unparsable output; a valid reward
    TRUNCATED = "truncated"  # a completion or the context ran out of budget
    TIMEOUT = "timeout"
    ENV = "env"
    GRADER = "grader"
    INFRA = "infra"
    CANCELLED = "cancelled"


TRAINABLE_REASONS = frozenset({Reason.OK, Reason.POLICY, Reason.TRUNCATED})


class TaskRef(msgspec.Struct, frozen=True, kw_only=True):
    """Which task of the run it is about: what a decision, the tasks of it and their episodes have in common.

    Each of them is a TaskRef, so these fields lie flat in all three, on the wire too.
    """

    source: str
    group_id: str  # incarnation/source/epoch/index
    group_size: int
    epoch: int = 0  # pass over the source's tasks
    index: int = 0  # of the task in its environment
    member: int = -1  # of the group; -1 = a decision on all of them
    attempt: int = 0
    env: str = ""
    feeds: tuple[str, ...] = ()  # trainable policies whose credit this task uses
    eval_set: str = ""  # "" = for training
    eval_round: int = 0  # which evaluation of that set

    def ref(self, **changes: Any) -> dict[str, Any]:
        """These fields with some changed, to make another TaskRef's from them."""
        return {name: getattr(self, name) for name in TaskRef.__struct_fields__} | changes


class Task(TaskRef, Message, frozen=True, kw_only=True):
    """One thing to do, one member of a group. Subject task.<env> (or task.<env>.eval)."""

    id: str  # incarnation/source/epoch/index/member
    payload: dict[str, Any]  # what the env needs; JSON-like
    seed: int  # differs per member, equal over attempts
    sampling: Sampling | None = None  # None: the policy's own sampling settings
    min_versions: dict[str, int] = {}  # per policy: the oldest version that may sample
    cohort_id: str = ""  # deterministic mode: requests of a cohort are admitted together; "" = none
    cohort_size: int = 0  # tasks in the cohort
    deadline_s: float = 600.0  # time allowed for one episode


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One generation: the tokens that came before it and the tokens that were sampled."""

    context_tokens: Array  # i4[P]: appended since the previous turn's completion
    completion_tokens: Array  # i4[C]: as sampled, including the stop token if there is one
    logprobs: Array  # f4[C]: behaviour logprobs (temperature-scaled, before top-k/top-p; greedy: unscaled)
    versions: tuple[VersionSpan, ...]  # spans over the C completion tokens
    finish_reason: str  # stop | length | abort
    sampling: Sampling | None = None  # that it was sampled with; None (old records): as the policy's table says


class Spoken(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a conversation, as people read it."""

    role: str  # system | user | assistant | tool; context = a prompt in tokens; "" = a note on what is left out
    content: str


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """One policy's turns in one episode, with its reward."""

    policy: str
    turns: tuple[Turn, ...]
    reward: float
    role: str = ""
    parent: int = -1  # index of the trajectory that spawned this one; -1 = none
    reward_parts: dict[str, float] = {}
    text: str = ""  # a readable view; never trained on
    messages: tuple[Spoken, ...] = ()  # likewise, of all that was said; shortened; () = not kept


class Episode(TaskRef, Message, frozen=True, kw_only=True):
    """The terminal record of one attempt at a task. Subject episode.<env>."""

    task_id: str
    reason: Reason
    trajectories: tuple[Trajectory, ...] = ()
    correct: float | None = None  # None: the env has no notion of correct
    error: str = ""  # readable detail when reason is not ok
    prompt: str = ""  # readable view of the task
    answer: str = ""  # readable view of the expected answer, where there is one
    started_at: float = 0.0  # unix seconds
    ended_at: float = 0.0
    metrics: dict[str, float] = {}
