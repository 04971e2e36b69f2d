"""What one line of metrics.jsonl, events.jsonl and episodes.jsonl looks like. Pure; JSON has no NaN, so NaN is null."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from astraflow.messages import Episode, Event, Metrics

TOKEN_BYTES = 4
_FIELDS = ("at", "kind", "policy", "step", "version", "batch", "lineage", "labels")


class ReplyLine(msgspec.Struct, frozen=True, kw_only=True):
    """One trajectory as a person reads it. `versions` are the oldest and newest version that sampled it, or ()."""

    policy: str
    role: str = ""
    reward: float | None = None  # None: not a number
    reward_parts: dict[str, float | None] = {}
    tokens: int = 0  # sampled
    versions: tuple[int, ...] = ()
    finish_reason: str = ""  # of the last turn
    text: str = ""


class EpisodeLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of episodes.jsonl, failed episodes too."""

    task_id: str
    attempt: int
    env: str
    source: str
    reason: str
    correct: float | None = None
    prompt: str = ""
    answer: str = ""  # the expected one
    replies: tuple[ReplyLine, ...] = ()
    error: str = ""
    eval_set: str = ""
    eval_round: int = 0
    started_at: float = 0.0  # unix seconds
    ended_at: float = 0.0
    metrics: dict[str, float | None] = {}


def episode_line(episode: Episode, *, text: bool = True) -> EpisodeLine:
    """The readable view of an episode. `text=False` leaves prompt, answer and replies out."""
    replies = []
    for trajectory in episode.trajectories:
        versions = [span.version for turn in trajectory.turns for span in turn.versions]
        replies.append(
            ReplyLine(
                policy=trajectory.policy,
                role=trajectory.role,
                reward=trajectory.reward,
                reward_parts=dict(trajectory.reward_parts),
                tokens=sum(len(turn.completion_tokens.data) // TOKEN_BYTES for turn in trajectory.turns),
                versions=(min(versions), max(versions)) if versions else (),
                finish_reason=trajectory.turns[-1].finish_reason if trajectory.turns else "",
                text=trajectory.text if text else "",
            )
        )
    return EpisodeLine(
        task_id=episode.task_id,
        attempt=episode.attempt,
        env=episode.env,
        source=episode.source,
        reason=episode.reason.value,
        correct=episode.correct,
        prompt=episode.prompt if text else "",
        answer=episode.answer if text else "",
        replies=tuple(replies),
        error=episode.error,
        eval_set=episode.eval_set,
        eval_round=episode.eval_round,
        started_at=_time(episode.started_at),
        ended_at=_time(episode.ended_at),
        metrics=dict(episode.metrics),
    )


def metrics_line(metrics: Metrics) -> dict[str, Any]:
    """The message's fields and, next to them, its values under their names: flat, as data frames like it."""
    return metrics.values | {name: getattr(metrics, name) for name in _FIELDS} | {"at": _time(metrics.at)}


def _time(at: float) -> float:
    """Unix seconds; 0 for what is no time, so that the line can be read again."""
    return at if math.isfinite(at) else 0.0


def metrics_of(line: dict[str, Any]) -> Metrics:
    """The message that `metrics_line` wrote; null is NaN again. Raises msgspec.ValidationError for anything else."""
    values = {key: math.nan if value is None else value for key, value in line.items() if key not in _FIELDS}
    return msgspec.convert({name: line[name] for name in _FIELDS if name in line} | {"values": values}, Metrics)


def encode_line(line: Episode | Event | Metrics, *, episode_text: bool = True) -> bytes:
    """One line of JSON with its newline. Raises TypeError, ValueError or RecursionError for what JSON can't say."""
    view: Any = line
    if isinstance(line, Episode):
        view = episode_line(line, text=episode_text)
    elif isinstance(line, Metrics):
        view = metrics_line(line)
    return msgspec.json.encode(view, enc_hook=str) + b"\n"


def read_metrics(path: Path) -> Iterator[Metrics]:
    """Every message in a metrics.jsonl; nothing if there is no such file."""
    for line in _lines(path):
        yield metrics_of(msgspec.json.decode(line))


def read_episodes(path: Path) -> Iterator[EpisodeLine]:
    """Every line of an episodes.jsonl; nothing if there is no such file."""
    decoder = msgspec.json.Decoder(EpisodeLine)
    for line in _lines(path):
        yield decoder.decode(line)


def _lines(path: Path) -> Iterator[bytes]:
    """Whole lines only: a file that is being written may end in the middle of one."""
    if path.exists():
        with path.open("rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))
