"""What one line of metrics.jsonl, events.jsonl and episodes.jsonl looks like. Pure; JSON has no NaN, so NaN is null."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from astraflow.messages import Episode, Event, Metrics, Spoken

T = TypeVar("T")

_TOKEN_BYTES = 4
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
    messages: tuple[Spoken, ...] = ()  # the whole conversation, perhaps shortened; () = not kept


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
                tokens=sum(len(turn.completion_tokens.data) // _TOKEN_BYTES for turn in trajectory.turns),
                versions=(min(versions), max(versions)) if versions else (),
                finish_reason=trajectory.turns[-1].finish_reason if trajectory.turns else "",
                text=trajectory.text if text else "",
                messages=trajectory.messages if text else (),
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


def _metrics_line(metrics: Metrics) -> dict[str, Any]:
    """The message's fields and, next to them, its values under their names: flat, as data frames like it."""
    return metrics.values | {name: getattr(metrics, name) for name in _FIELDS} | {"at": _time(metrics.at)}


def _time(at: float) -> float:
    """Unix seconds; 0 for what is no time, so that the line can be read again."""
    return at if math.isfinite(at) else 0.0


def _metrics_of(line: dict[str, Any]) -> Metrics:
    """The message that `_metrics_line` wrote; null is NaN again. Raises msgspec.ValidationError for anything else."""
    values = {key: math.nan if value is None else value for key, value in line.items() if key not in _FIELDS}
    return msgspec.convert({name: line[name] for name in _FIELDS if name in line} | {"values": values}, Metrics)


def encode_line(line: Episode | Event | Metrics, *, episode_text: bool = True) -> bytes:
    """One line of JSON with its newline. Raises TypeError, ValueError or RecursionError for what JSON can't say."""
    view: Any = line
    if isinstance(line, Episode):
        view = episode_line(line, text=episode_text)
    elif isinstance(line, Metrics):
        view = _metrics_line(line)
    return msgspec.json.encode(view, enc_hook=str) + b"\n"


_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, TypeError, AttributeError)
_Damaged = Callable[[Path, int], None]  # is told of a line that can't be read: the file, and the line's number from 1


def read_metrics(path: Path, *, damaged: _Damaged | None = None) -> Iterator[Metrics]:
    """Every message in a metrics.jsonl that can be read; nothing if there is no such file."""
    for _, line in _lines(path, lambda line: _metrics_of(msgspec.json.decode(line)), damaged):
        yield line


def read_episodes(path: Path, *, damaged: _Damaged | None = None) -> Iterator[EpisodeLine]:
    """Every line of an episodes.jsonl that can be read; nothing if there is no such file."""
    for _, line in numbered_episodes(path, damaged=damaged):
        yield line


def metrics_in(line: bytes) -> Metrics | None:
    """The message of one line of a metrics.jsonl; None if it can't be read."""
    try:
        return _metrics_of(msgspec.json.decode(line))
    except _UNREADABLE:
        return None


def numbered_episodes(path: Path, *, damaged: _Damaged | None = None) -> Iterator[tuple[int, EpisodeLine]]:
    """Likewise, each with its number in the file, from 1 on."""
    return _lines(path, msgspec.json.Decoder(EpisodeLine).decode, damaged)


def _lines(path: Path, decode: Callable[[bytes], T], damaged: _Damaged | None) -> Iterator[tuple[int, T]]:
    """Whole lines only: a file that is being written may end in the middle of one."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                item = decode(line)
            except _UNREADABLE:
                if damaged is not None:
                    damaged(path, number)
            else:
                yield number, item
