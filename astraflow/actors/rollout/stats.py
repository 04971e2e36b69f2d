"""Counts of what a rollout process did since it last said so. Pure but for the clock."""

from collections import deque
from dataclasses import dataclass, field

from astraflow import clock
from astraflow.messages import TRAINABLE_REASONS, Episode, Reason
from astraflow.messages.metric_names import (
    ROLLOUT_CONTINUATIONS,
    ROLLOUT_EPISODE_S,
    ROLLOUT_EPISODES,
    ROLLOUT_FAILURES,
    ROLLOUT_TOKENS,
    ROLLOUT_TOKENS_PER_S,
    ROLLOUT_TRUNCATED_FRACTION,
)

CUT_AMONG = 32  # replies of a policy in an environment, of which more than half cut off is worth a word


class CutReplies:
    """Notices where most replies run into the token budget. It says so once for each policy and environment."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str], deque[bool]] = {}
        self._told: set[tuple[str, str]] = set()

    def add(self, episode: Episode) -> list[str]:
        """Sentences for people."""
        sentences = []
        for trajectory in episode.trajectories:
            key = (trajectory.policy, episode.env)
            if key in self._told:
                continue
            newest = self._newest.setdefault(key, deque(maxlen=CUT_AMONG))
            newest.extend(turn.finish_reason == "length" for turn in trajectory.turns)
            if len(newest) == CUT_AMONG and sum(newest) > CUT_AMONG / 2:
                self._told.add(key)
                sentences.append(
                    f"{sum(newest)} of the newest {CUT_AMONG} replies of policy {trajectory.policy} in environment "
                    f"{episode.env} were cut off: raise policies.{trajectory.policy}.sampling.max_new_tokens, or its "
                    "engine.context_length"
                )
        return sentences


def sampled_tokens(episode: Episode) -> int:
    """Tokens that policies sampled in the episode."""
    return sum(turn.completion_tokens.shape[0] for item in episode.trajectories for turn in item.turns)


@dataclass
class RolloutStats:
    """Accumulates episodes; `flush` returns the metrics since the previous flush and starts anew."""

    episodes: int = 0
    tokens: int = 0
    truncated: int = 0
    failures: int = 0
    seconds: float = 0.0
    continuations_before: int = 0
    since: float = field(default_factory=clock.monotonic)

    def add(self, episode: Episode) -> None:
        """Count one published episode."""
        self.episodes += 1
        self.tokens += sampled_tokens(episode)
        self.truncated += episode.reason is Reason.TRUNCATED
        self.failures += episode.reason not in TRAINABLE_REASONS and episode.reason is not Reason.CANCELLED
        self.seconds += episode.ended_at - episode.started_at

    def flush(self, *, continuations: int) -> dict[str, float] | None:
        """The metrics, or None if no episode ended. `continuations` is the process's total so far."""
        if not self.episodes:
            return None
        now = clock.monotonic()
        values: dict[str, float] = {
            ROLLOUT_EPISODES: self.episodes,
            ROLLOUT_TOKENS: self.tokens,
            ROLLOUT_TOKENS_PER_S: self.tokens / max(1e-9, now - self.since),
            ROLLOUT_TRUNCATED_FRACTION: self.truncated / self.episodes,
            ROLLOUT_FAILURES: self.failures,
            ROLLOUT_EPISODE_S: self.seconds / self.episodes,
            ROLLOUT_CONTINUATIONS: continuations - self.continuations_before,
        }
        self.episodes = self.tokens = self.truncated = self.failures = 0
        self.seconds, self.since, self.continuations_before = 0.0, now, continuations
        return values
