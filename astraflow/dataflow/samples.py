"""From an episode to samples: what a policy's part of it is worth, and its trajectories as flat token arrays.

No group statistics. Invariant: `sample_of` never fails on a trajectory of an episode that `judge_episode` found valid.
Axes: T all tokens of a trajectory, P context tokens of a turn, C completion tokens of a turn.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from astraflow.dataflow.ledger import Fate
from astraflow.errors import MessageError
from astraflow.messages import (
    TRAINABLE_REASONS,
    Episode,
    Sample,
    TemperatureSpan,
    Trajectory,
    Turn,
    VersionSpan,
    array_of,
)

# Beyond this, sums over a group may overflow; no grader means such numbers. NaN and infinity are beyond it too.
_LARGEST_REWARD = 1e100


class Overlong(NamedTuple):
    """A soft penalty for replies that come near the token budget, so that ending in time pays before it is forced.

    Nothing up to limit − window tokens, `weight` at `limit` and beyond, evenly rising between.
    Source: arXiv:2503.14476 §3.4.
    """

    weight: float = 0.0  # taken off the reward; 0 = off
    limit: int = 0  # tokens of one reply
    window: float = 0.0  # tokens

    def penalty(self, tokens: int) -> float:
        """What a reply of so many tokens costs."""
        if not self.weight:
            return 0.0
        return self.weight * min(1.0, max(0.0, (tokens - (self.limit - self.window)) / self.window))


NO_PENALTY = Overlong()


@dataclass(frozen=True, kw_only=True)
class JudgedMember:
    """What one policy gets from one member of a group."""

    fate: Fate | None  # None: it counts; else why it can't be trained on
    reward: float = 0.0  # mean over the policy's trajectories
    penalty: float = 0.0  # for their length, to be taken off in training; mean as well
    versions: tuple[int, ...] = ()  # that sampled its tokens, sorted
    scores: Mapping[str, float] = field(default_factory=dict)  # by role: mean reward less penalty
    parts: Mapping[str, float] = field(default_factory=dict)  # that the environment's grade named

    @property
    def score(self) -> float:
        """What people see of the member: advantages are made of `scores`."""
        return self.reward - self.penalty


def trajectories_of(episode: Episode, policy: str) -> list[tuple[int, Trajectory]]:
    """The policy's trajectories with at least one sampled token, each with its index in the episode."""
    return [
        (at, trajectory)
        for at, trajectory in enumerate(episode.trajectories)
        if trajectory.policy == policy and any(turn.completion_tokens.data for turn in trajectory.turns)
    ]


def judge_episode(episode: Episode, policy: str, overlong: Overlong = NO_PENALTY) -> JudgedMember:
    """Whether the episode has something to train `policy` on.

    A reward that is no number, infinite or absurdly large is the grader's fault, never a 0.
    """
    if episode.reason not in TRAINABLE_REASONS:
        return JudgedMember(fate=Fate(episode.reason))
    trajectories = [trajectory for _, trajectory in trajectories_of(episode, policy)]
    if not trajectories:
        return JudgedMember(fate=Fate.NO_TOKENS)
    rewards = [trajectory.reward for trajectory in trajectories]
    if not all(isinstance(reward, int | float) and abs(reward) <= _LARGEST_REWARD for reward in rewards):
        return JudgedMember(fate=Fate.GRADER)
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    if any(turn.completion_tokens.data and not turn.logprobs.data for turn in turns):
        return JudgedMember(fate=Fate.NO_LOGPROBS)
    try:
        for turn in turns:
            _check(turn)
    except MessageError:
        return JudgedMember(fate=Fate.MALFORMED)
    longest = [max(turn.completion_tokens.shape[0] for turn in trajectory.turns) for trajectory in trajectories]
    penalties = [overlong.penalty(length) for length in longest]
    return JudgedMember(
        fate=None,
        reward=_mean(rewards),
        penalty=_mean(penalties),
        scores={
            role: _mean([r for r, t in zip(rewards, trajectories, strict=True) if t.role == role])
            - _mean([p for p, t in zip(penalties, trajectories, strict=True) if t.role == role])
            for role in {trajectory.role for trajectory in trajectories}
        },
        versions=tuple(sorted({span.version for turn in turns for span in turn.versions})),
        parts=trajectories[0].reward_parts,  # of the episode's outcome, so all have the same
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _check(turn: Turn) -> None:
    """Raises MessageError unless the turn's arrays and spans fit together."""
    for tokens in (turn.context_tokens, turn.completion_tokens):
        if tokens.dtype != "i4" or len(tokens.shape) != 1 or np.any(tokens.numpy() < 0):
            raise MessageError(f"tokens are {tokens.dtype}{tokens.shape}, expected i4[n] of ids ≥ 0")
    sampled = turn.completion_tokens.shape[0]
    if turn.logprobs.dtype != "f4" or turn.logprobs.shape != (sampled,) or not np.isfinite(turn.logprobs.numpy()).all():
        raise MessageError(f"logprobs are {turn.logprobs.dtype}{turn.logprobs.shape}, expected {sampled} finite f4")
    reached = 0
    for span in turn.versions:
        if span.start != reached or span.end < span.start or span.version < 0:
            raise MessageError(f"version span {span} doesn't start at {reached}")
        reached = span.end
    if reached != sampled:
        raise MessageError(f"version spans end at {reached}, expected {sampled}")
    if turn.sampling is not None and not (math.isfinite(turn.sampling.temperature) and turn.sampling.temperature >= 0):
        raise MessageError(f"temperature is {turn.sampling.temperature}, expected 0 or more")


def sample_of(episode: Episode, at: int, *, advantage: float) -> Sample:
    """Trajectory `at` of a valid episode as a sample: (context, completion) of its turns, one behind the other."""
    trajectory = episode.trajectories[at]
    tokens, mask, logprobs, spans = [], [], [], []
    temperatures: list[TemperatureSpan] = []
    length = 0
    for turn in trajectory.turns:
        context, completion = turn.context_tokens.numpy(), turn.completion_tokens.numpy()
        tokens += [context, completion]
        mask += [np.zeros(context.size, "u1"), np.ones(completion.size, "u1")]
        logprobs += [np.zeros(context.size, "f4"), turn.logprobs.numpy()]
        start = length + context.size
        spans += [VersionSpan(version=s.version, start=start + s.start, end=start + s.end) for s in turn.versions]
        length = start + completion.size
        if turn.sampling is not None and completion.size:
            temperatures.append(TemperatureSpan(temperature=turn.sampling.temperature, start=start, end=length))
    return Sample(
        id=f"{episode.task_id}#{at}",
        task_id=episode.task_id,
        group_id=episode.group_id,
        tokens=array_of(np.concatenate(tokens), "i4"),
        loss_mask=array_of(np.concatenate(mask), "u1"),
        logprobs=array_of(np.concatenate(logprobs), "f4"),
        versions=tuple(span for span in spans if span.end > span.start),
        advantage=advantage,
        reward=trajectory.reward,
        env=episode.env,
        temperatures=_joined(temperatures),
    )


def _joined(spans: Sequence[TemperatureSpan]) -> tuple[TemperatureSpan, ...]:
    """Neighbours of one temperature as one span; what lies between them wasn't sampled."""
    joined: list[TemperatureSpan] = []
    for span in spans:
        if joined and joined[-1].temperature == span.temperature:
            span = TemperatureSpan(temperature=span.temperature, start=joined.pop().start, end=span.end)
        joined.append(span)
    return tuple(joined)
