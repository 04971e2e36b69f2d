"""What an environment calls: one policy's chat and generate, recorded as append-only trajectories.

It decides when a call continues a trajectory and when it forks a new one; it never re-tokenises what was sampled.
Invariant: a trajectory's tokens are exactly what the engine saw and sampled, in order.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from astraflow.actors.rollout.generation import Call, Completion, Generates
from astraflow.envs.base import ChatMessage, Reply
from astraflow.messages import Sampling, Task, Trajectory, Turn, array_of
from astraflow.models.tokenizer import ChatTokenizer

LONG_CHARS, LONG_TOKENS = 8192, 4096  # above these, text takes longer than the loop may be held: 5 ms


def turn_seed(seed: int, policy: str, turn: int) -> int:
    """A turn's own sampling seed, equal wherever and whenever the turn is played."""
    digest = hashlib.blake2b(f"{seed}/{policy}/{turn}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@dataclass
class _Recording:
    """A trajectory in the making."""

    tokens: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    turns: list[Turn] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def extended_by(self, prompt: NDArray[np.int32]) -> bool:
        return np.array_equal(prompt[: self.tokens.size], self.tokens)

    def add(self, prompt: NDArray[np.int32], completion: Completion, text: str) -> None:
        self.turns.append(
            Turn(
                context_tokens=array_of(prompt[self.tokens.size :], "i4"),
                completion_tokens=array_of(completion.tokens, "i4"),
                logprobs=array_of(completion.logprobs, "f4"),
                versions=completion.versions,
                finish_reason=completion.finish_reason,
            )
        )
        self.tokens = np.concatenate([prompt, completion.tokens])
        self.texts.append(text)


class RecordedPolicy:
    """A PolicyHandle for one episode. Its trajectories are what the episode message carries."""

    def __init__(
        self, *, policy: str, task: Task, sampling: Sampling, client: Generates, tokenizer: ChatTokenizer
    ) -> None:
        self.policy = policy
        self._task = task
        self._sampling = sampling
        self._client = client
        self._tokenizer = tokenizer
        self._recordings: list[_Recording] = []
        self._calls = 0

    async def chat(self, messages: Sequence[ChatMessage], *, sampling: Sampling | None = None) -> Reply:
        """Render with the policy's chat template, generate, decode."""
        long = sum(len(message.content) for message in messages) > LONG_CHARS
        render = self._tokenizer.render
        tokens = await asyncio.to_thread(render, messages) if long else render(messages)
        return await self._generate(np.array(tokens, np.int32), sampling)

    async def generate(self, tokens: NDArray[np.int32], *, sampling: Sampling | None = None) -> Reply:
        """Token in, token out."""
        return await self._generate(np.array(tokens, np.int32), sampling)

    async def _generate(self, prompt: NDArray[np.int32], sampling: Sampling | None) -> Reply:
        task, number = self._task, self._calls
        self._calls += 1
        completion = await self._client.generate(
            Call(
                id=f"{task.id}@{task.attempt}#{number}",
                policy=self.policy,
                prompt_tokens=prompt,
                sampling=sampling or self._sampling,
                seed=turn_seed(task.seed, self.policy, number),
                min_version=task.min_versions.get(self.policy, 0),
                cohort_id=task.cohort_id,
                cohort_size=task.cohort_size,
            )
        )
        decode, ids = self._tokenizer.decode, completion.tokens.tolist()
        text = await asyncio.to_thread(decode, ids) if len(ids) > LONG_TOKENS else decode(ids)
        self._recording_for(prompt).add(prompt, completion, text)
        return Reply(
            text=text,
            tokens=completion.tokens,
            logprobs=completion.logprobs,
            versions=completion.versions,
            finish_reason=completion.finish_reason,
        )

    def _recording_for(self, prompt: NDArray[np.int32]) -> _Recording:
        """The newest trajectory that the prompt extends, else a new one (a fork)."""
        for recording in reversed(self._recordings):
            if recording.extended_by(prompt):
                return recording
        self._recordings.append(_Recording())
        return self._recordings[-1]

    def trajectories(self, reward: float, parts: dict[str, float]) -> tuple[Trajectory, ...]:
        """What was recorded, each trajectory with the policy's reward."""
        return tuple(
            Trajectory(
                policy=self.policy,
                turns=tuple(recording.turns),
                reward=reward,
                reward_parts=parts,
                text="\n".join(recording.texts),
            )
            for recording in self._recordings
        )
