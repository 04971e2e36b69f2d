"""What an environment or agent calls: one policy in one role, for one episode.

It renders, generates and decodes; `recording` decides what continues which conversation. It knows no other policy.
"""

import asyncio
import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from astraflow.actors.rollout.budget import Budget
from astraflow.actors.rollout.call import Call, Completion, Generates
from astraflow.actors.rollout.recording import Conversation, Fork, Recording, Tokens
from astraflow.envs.base import ChatMessage, Reply
from astraflow.errors import ContextError, EnvError, RequestError
from astraflow.messages import Sampling, Spoken, Task
from astraflow.messages.sampling import fault_of_sampling, why_untrainable
from astraflow.models.quoted import Quoted
from astraflow.models.tokenizer import ChatTokenizer, utf8

_log = logging.getLogger(__name__)

PATIENCE_S = 3600.0  # that code which outlives its episode is kept waiting for
_LONG_CHARS, _LONG_TOKENS = 8192, 4096  # above these, text takes longer than the loop may be held: 5 ms


def turn_seed(seed: int, policy: str, turn: int) -> int:
    """A turn's own sampling seed, equal wherever and whenever the turn is played."""
    digest = hashlib.blake2b(f"{seed}/{policy}/{turn}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@dataclass(frozen=True, kw_only=True)
class Play:
    """What the handles of one episode share."""

    task: Task
    client: Generates
    recording: Recording
    budget: Budget


class RecordedPolicy:
    """A PolicyHandle for one episode. What is said through it becomes trajectories of its policy in its role."""

    def __init__(
        self,
        play: Play,
        *,
        policy: str,
        sampling: Sampling,
        tokenizer: ChatTokenizer,
        role: str = "",
        parent: Conversation | None = None,
    ) -> None:
        self.policy = policy
        self.role = role or policy
        self._play = play
        self._sampling = sampling
        self._tokenizer = tokenizer
        self._parent = parent
        self._mine: list[Conversation] = []
        self.cut_off = False

    @property
    def sampling(self) -> Sampling:
        """What a call samples with that doesn't say otherwise."""
        return self._sampling

    def spawn(self, role: str = "") -> "RecordedPolicy":
        """A sub-agent: the same policy with conversations of its own, whose parent is this one's newest."""
        return RecordedPolicy(
            self._play,
            policy=self.policy,
            sampling=self._sampling,
            tokenizer=self._tokenizer,
            role=role or self.role,
            parent=self._mine[-1] if self._mine else self._parent,
        )

    async def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        sampling: Sampling | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Reply:
        """Render with the policy's chat template, generate, decode."""
        long = sum(len(message.content) for message in messages) > _LONG_CHARS
        work = self._prompt_of
        prompt = await asyncio.to_thread(work, messages, tools) if long else work(messages, tools)
        conversation, reply = await self._generate(prompt.tokens, prompt.continues, sampling, messages)
        conversation.messages, conversation.rendered = tuple(messages), prompt.rendered
        return reply

    async def generate(self, tokens: Tokens, *, sampling: Sampling | None = None) -> Reply:
        """Token in, token out."""
        _, reply = await self._generate(np.array(tokens, np.int32), None, sampling)
        return reply

    async def complete(self, text: str, *, sampling: Sampling | None = None) -> Reply:
        """Go on behind the text as it stands, without a chat template."""
        encode = self._tokenizer.encode
        ids = await asyncio.to_thread(encode, text) if len(text) > _LONG_CHARS else encode(text)
        return await self.generate(np.array(ids, np.int32), sampling=sampling)

    async def count(self, messages: Sequence[ChatMessage], *, tools: Sequence[Mapping[str, Any]] = ()) -> int:
        """Tokens of the prompt that `chat` would make; nothing is sampled and nothing recorded."""
        rendered = await asyncio.to_thread(self._tokenizer.template, self._told(messages), tools)
        return len(await asyncio.to_thread(self._tokenizer.encode, rendered))

    def _prompt_of(self, messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]]) -> "_Prompt":
        rendered = self._tokenizer.template(self._told(messages), tools)
        conversation = next((each for each in reversed(self._mine) if each.answered_in(messages)), None)
        if conversation is not None:
            prompt = conversation.continued(rendered, self._tokenizer)
            if not isinstance(prompt, Fork):
                return _Prompt(rendered, prompt, conversation)
            self._forked(prompt)
        elif any(each.asked_in(messages) for each in self._mine):
            self._forked(Fork.AGENT)
        return _Prompt(rendered, np.array(self._tokenizer.encode(rendered), np.int32), None)

    def _told(self, messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
        """The messages, where this policy's own replies know which of their control tokens were sampled as such."""
        told: dict[str, Quoted] = {
            text.strip(): text for each in self._mine for text in each.texts if isinstance(text, Quoted)
        }
        if not told:
            return messages
        return [
            replace(message, content=told[message.content.strip()].as_in(message.content))
            if message.role == "assistant" and message.content.strip() in told
            else message
            for message in messages
        ]

    def _forked(self, why: Fork) -> None:
        self._play.recording.fork_reasons[why] += 1
        _log.debug("history rewritten", extra={"task": self._play.task.id, "policy": self.policy, "reason": why})

    async def _generate(
        self,
        prompt: Tokens,
        continues: Conversation | None,
        sampling: Sampling | None,
        messages: Sequence[ChatMessage] = (),
    ) -> tuple[Conversation, Reply]:
        before = continues or next((each for each in reversed(self._mine) if each.extended_by(prompt)), None)
        if self._play.recording.closed:
            await self._nobody_waits()
        sampling = sampling or self._sampling
        completion = await self._complete(prompt, sampling, before.replica if before else "")
        ids, read = completion.tokens.tolist(), self._read
        text, told = await asyncio.to_thread(read, ids) if len(ids) > _LONG_TOKENS else read(ids)
        conversation = self._conversation_for(prompt, continues)
        if self._play.recording.transcript_chars:
            heard = conversation.unheard(messages) if messages else None
            if heard is None:  # it was asked in tokens, or rewritten in a way that its tokens don't show
                heard = [Spoken(role="context", content=self._seen(prompt[conversation.tokens_T.size :].tolist()))]
            conversation.transcript += [*heard, Spoken(role="assistant", content=utf8(text))]
        conversation.add(prompt, completion, told, sampling)
        self.cut_off = completion.finish_reason == "length"
        reply = Reply(
            text=text,
            tokens=completion.tokens,
            logprobs=completion.logprobs,
            versions=completion.versions,
            finish_reason=completion.finish_reason,
            prompt_tokens=prompt.size,
        )
        return conversation, reply

    def _read(self, tokens: list[int]) -> tuple[str, str]:
        """(a reply's text, the same as the conversation keeps it)."""
        text = self._tokenizer.decode(tokens)
        return text, self._tokenizer.told(tokens, text)

    def _seen(self, tokens: list[int]) -> str:
        """Tokens of a prompt as text; of very many both ends, since the loop waits for it."""
        if len(tokens) <= _LONG_TOKENS:
            return utf8(self._tokenizer.decode(tokens))
        half = _LONG_TOKENS // 2
        head, tail = self._tokenizer.decode(tokens[:half]), self._tokenizer.decode(tokens[-half:])
        return utf8(f"{head}\n… {len(tokens) - 2 * half} tokens left out …\n{tail}")

    async def _complete(self, prompt: Tokens, sampling: Sampling, prefers: str) -> Completion:
        task, budget = self._play.task, self._play.budget
        self._check(sampling)
        granted = budget.reserve(sampling.max_new_tokens)
        sampled = granted  # a call that fails has spent what it was granted
        number = self._play.recording.number_of_call(self.policy)
        try:
            completion = await self._play.client.generate(
                Call(
                    id=f"{task.id}@{task.attempt}#{number}",
                    policy=self.policy,
                    prompt_tokens=prompt,
                    sampling=msgspec.structs.replace(sampling, max_new_tokens=granted),
                    seed=turn_seed(task.seed, self.policy, number) if sampling.seed is None else sampling.seed,
                    min_version=task.min_versions.get(self.policy, 0),
                    cohort_id=task.cohort_id,
                    cohort_size=task.cohort_size,
                    prefers=prefers,
                    decode=self._tokenizer.decode if sampling.stop else None,
                )
            )
            sampled = completion.tokens.size
        except RequestError as exc:
            sampled = 0
            if exc.fills_context and self._play.recording.conversations:
                raise ContextError(f"what was said so far has filled the context: {exc}") from exc
            if exc.fills_context:
                raise EnvError(
                    f"the prompt has {prompt.size} tokens, which leaves no room in the context of policy {self.policy};"
                    f" shorten it, or raise policies.{self.policy}.engine.context_length: {exc}"
                ) from exc
            raise EnvError(str(exc)) from exc
        finally:
            budget.settle(granted, sampled)
        return completion

    async def _nobody_waits(self) -> None:
        """For code that was left behind, and asks again whatever it is told: it waits here, which costs nothing."""
        await asyncio.sleep(PATIENCE_S)
        raise EnvError(f"the episode of task {self._play.task.id} has ended")

    def _check(self, sampling: Sampling) -> None:
        """Raises EnvError for sampling that means nothing, or that can't be trained where this is trained on."""
        if fault := fault_of_sampling(sampling):
            raise EnvError(f"policy {self.policy} can't be asked so: {fault}")
        task = self._play.task
        if self.policy in task.feeds and not task.eval_set and (why := why_untrainable(sampling)):
            raise EnvError(f"policy {self.policy} is trained on what it says here, and {why}")

    def _conversation_for(self, prompt: Tokens, continues: Conversation | None) -> Conversation:
        """The conversation that the prompt continues, else a new one. Another call may have continued it meanwhile."""
        candidates = [continues] if continues is not None else []
        for conversation in [*candidates, *reversed(self._mine)]:
            if conversation.extended_by(prompt):
                return conversation
        self._mine.append(
            self._play.recording.begin(Conversation(policy=self.policy, role=self.role, parent=self._parent))
        )
        return self._mine[-1]


@dataclass(frozen=True)
class _Prompt:
    """A conversation made ready for the engine."""

    rendered: str
    tokens: Tokens
    continues: Conversation | None
