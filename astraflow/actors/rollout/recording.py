"""What was said in one episode: every conversation of every policy, token for token.

A conversation only grows. What the engine saw and sampled is never re-tokenised: when an agent sends the history back
as text, the tokens of record are used for it, and only what is new is encoded. Where a chat template rewrites the
history (or the agent does), the text no longer continues the conversation, and a new one begins: a fork, counted by
its reason. Invariant: a prompt that continues a conversation is its tokens of record and then the very tokens that
stand behind the newest reply when the whole conversation is rendered and encoded anew.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from astraflow.actors.rollout.call import Completion
from astraflow.actors.rollout.transcript import shortened
from astraflow.envs.base import ChatMessage
from astraflow.messages import Sampling, Spoken, Trajectory, Turn, array_of
from astraflow.models.tokenizer import ChatTokenizer, utf8

Tokens = NDArray[np.int32]


class Fork(StrEnum):
    """Why a history couldn't be continued in its tokens of record."""

    AGENT = "agent"  # the agent sent another reply back than the policy gave
    HISTORY = "history"  # the template renders what came before the reply otherwise than it did
    REPLY = "reply"  # the template leaves out or changes a part of the reply, such as its thoughts
    END = "end"  # the template ends the reply otherwise than the policy did
    SEAM = "seam"  # a token would stand half in the reply, and its other half has no tokens of its own


@dataclass(kw_only=True, eq=False)
class Conversation:
    """One trajectory in the making. Axes: T all tokens so far."""

    policy: str
    role: str
    parent: "Conversation | None" = None  # who spawned it
    tokens_T: Tokens = field(default_factory=lambda: np.empty(0, np.int32))
    turns: list[Turn] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    transcript: list[Spoken] = field(default_factory=list)  # for people
    messages: tuple[ChatMessage, ...] = ()  # of the newest prompt
    rendered: str = ""  # the newest prompt as text
    replica: str = ""  # who holds the tokens so far

    def extended_by(self, prompt: Tokens) -> bool:
        """The prompt begins with all tokens so far."""
        return np.array_equal(prompt[: self.tokens_T.size], self.tokens_T)

    def asked_in(self, messages: Sequence[ChatMessage]) -> bool:
        """These messages begin with this conversation's, and go on with a reply of whatever content."""
        asked = len(self.messages)
        return (
            len(messages) > asked > 0
            and tuple(messages[:asked]) == self.messages
            and messages[asked].role == "assistant"
        )

    def unheard(self, messages: Sequence[ChatMessage]) -> list[Spoken] | None:
        """Which of a prompt's messages this conversation doesn't hold yet; None: they don't continue what it holds."""
        if self.turns and not self.asked_in(messages):
            return None
        new = messages[len(self.messages) + 1 :] if self.turns else messages
        return [Spoken(role=utf8(each.role), content=utf8(each.content)) for each in new]

    def answered_in(self, messages: Sequence[ChatMessage]) -> bool:
        """These messages are this conversation's, its newest reply included, and perhaps more."""
        return self.asked_in(messages) and messages[len(self.messages)].content.strip() == self.texts[-1].strip()

    def continued(self, rendered: str, tokenizer: ChatTokenizer) -> Tokens | Fork:
        """The prompt for the next reply: the tokens of record, and those behind the newest reply in `rendered`.

        Args: rendered: the whole conversation as the template writes it now.
        """
        if not rendered.startswith(self.rendered):
            return Fork.HISTORY
        at = _behind(rendered, len(self.rendered), self.texts[-1])
        if at is None:
            return Fork.REPLY
        if (last := int(self.tokens_T[-1])) in tokenizer.eos_token_ids:  # sampled: the template mustn't say it again
            at = _behind_end(rendered, at, tokenizer.text_of(last))
            if at is None:
                return Fork.END
        rest = tokenizer.encode_behind(rendered, at)
        return Fork.SEAM if rest is None else np.concatenate([self.tokens_T, np.array(rest, np.int32)])

    @property
    def cut_off(self) -> bool:
        """One of its replies ran out of tokens."""
        return any(turn.finish_reason == "length" for turn in self.turns)

    def add(self, prompt: Tokens, completion: Completion, text: str, sampling: Sampling) -> None:
        """One more turn. `prompt` begins with all tokens so far."""
        self.turns.append(
            Turn(
                context_tokens=array_of(prompt[self.tokens_T.size :], "i4"),
                completion_tokens=array_of(completion.tokens, "i4"),
                logprobs=array_of(completion.logprobs, "f4"),
                versions=completion.versions,
                finish_reason=completion.finish_reason,
                sampling=sampling,
            )
        )
        self.tokens_T = np.concatenate([prompt, completion.tokens])
        self.replica = completion.replica
        self.texts.append(text)
        self.messages, self.rendered = (), ""  # unknown for a turn in tokens; `chat` sets them


@dataclass
class Recording:
    """The conversations of one episode, in the order in which they began."""

    conversations: list[Conversation] = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=dict)  # per policy
    fork_reasons: Counter[Fork] = field(default_factory=Counter)  # of histories that were rewritten
    transcript_chars: int = 0  # kept of each conversation for people; 0 = nothing
    closed: bool = False  # the episode has its record

    def number_of_call(self, policy: str) -> int:
        """The number of a policy's next call, from 0 on."""
        number = self.calls.get(policy, 0)
        self.calls[policy] = number + 1
        return number

    def begin(self, conversation: Conversation) -> Conversation:
        self.conversations.append(conversation)
        return conversation

    def close(self) -> None:
        """The episode is over; what still runs of it isn't recorded any more."""
        self.closed = True

    def cut_off(self, rewards: Mapping[str, float]) -> bool:
        """A reply of a policy or role that is rewarded ran out of tokens."""
        rewarded = (each for each in self.conversations if each.role in rewards or each.policy in rewards)
        return any(each.cut_off for each in rewarded)

    @property
    def forks(self) -> int:
        """Histories that were rewritten."""
        return self.fork_reasons.total()

    @property
    def roles(self) -> set[str]:
        """Everybody who can be rewarded: policies, and roles that spoke."""
        return {name for each in self.conversations for name in (each.policy, each.role)}

    def trajectories(
        self, rewards: Mapping[str, float], parts: Mapping[str, float] | None = None
    ) -> tuple[Trajectory, ...]:
        """Those that have a reward: by their role's name, else by their policy's. Parents without one are left out."""
        kept = [each for each in self.conversations if each.role in rewards or each.policy in rewards]
        places = {id(each): at for at, each in enumerate(kept)}
        return tuple(
            Trajectory(
                policy=each.policy,
                turns=tuple(each.turns),
                reward=float(rewards[each.role] if each.role in rewards else rewards[each.policy]),
                role="" if each.role == each.policy else each.role,
                parent=next((places[id(one)] for one in _ancestors(each) if id(one) in places), -1),
                reward_parts=dict(parts or {}),
                text="\n".join(each.texts),
                messages=shortened(each.transcript, self.transcript_chars),
            )
            for each in kept
        )


def _behind(rendered: str, at: int, said: str) -> int | None:
    """Where the text goes on behind what was said, which begins at `at`; None if it isn't there.

    Templates trim, and may put a line or a space before.
    """
    bare = len(rendered) - len(rendered[at:].lstrip())
    for start, text in ((at, said), (bare, said.lstrip()), (bare, said.strip())):
        if rendered.startswith(text, start):
            return start + len(text)
    return None


def _behind_end(rendered: str, at: int, end: str) -> int | None:
    """Where the text goes on behind the end token, which may have white space before it; None if there is none."""
    bare = len(rendered) - len(rendered[at:].lstrip())
    for start in (at, bare):
        if end and rendered.startswith(end, start):
            return start + len(end)
    return None


def _ancestors(conversation: Conversation) -> Iterable[Conversation]:
    one = conversation.parent
    while one is not None:
        yield one
        one = one.parent
