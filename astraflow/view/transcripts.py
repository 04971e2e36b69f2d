"""Which episodes of a run somebody wants to read. Pure; it shows nothing.

Invariant: however long episodes.jsonl is, no more of it is held than is shown.
"""

import heapq
import math
from collections import deque
from collections.abc import Iterable, Iterator

from msgspec import Struct

from astraflow.errors import ConfigError
from astraflow.named import nearest
from astraflow.view.jsonl_lines import EpisodeLine, ReplyLine

_MOST_NAMES = 1000  # remembered for what wasn't found


class Choice(Struct, frozen=True, kw_only=True):
    """What to read; "" and 0 choose nothing. All that is given must hold."""

    episode: int = 0  # by its number in episodes.jsonl, from 1 on
    task: str = ""  # a task's id, or a part of it between slashes
    policy: str = ""  # somebody who speaks in it: a policy or a role
    env: str = ""
    source: str = ""
    eval_set: str = ""
    reason: str = ""
    worst: int = 0  # as many as earned least
    best: int = 0  # as many as earned most
    last: int = 5  # the newest, where neither worst nor best is wanted


class Numbered(Struct, frozen=True, kw_only=True):
    """An episode and its number in episodes.jsonl, from 1 on."""

    number: int
    line: EpisodeLine


def reward_of(line: EpisodeLine, policy: str = "") -> float:
    """The mean of what its trajectories earned, those of one policy or role if it is named; nan if nobody did."""
    rewards = [reply.reward for reply in line.replies if _speaks(reply, policy) and reply.reward is not None]
    return sum(rewards) / len(rewards) if rewards else math.nan


def chosen(lines: Iterable[tuple[int, EpisodeLine]], choice: Choice) -> list[Numbered]:
    """Those to read, in the order to read them in. Raises ConfigError, with the nearest name, if there are none."""
    seen = _Seen()
    fitting = (Numbered(number=number, line=line) for number, line in seen.all_of(lines) if _fits(number, line, choice))
    found: list[Numbered]
    if choice.worst or choice.best:
        earned = (each for each in fitting if math.isfinite(reward_of(each.line, choice.policy)))
        pick = heapq.nsmallest if choice.worst else heapq.nlargest
        found = pick(choice.worst or choice.best, earned, key=lambda each: reward_of(each.line, choice.policy))
    else:
        found = list(deque(fitting, maxlen=choice.last))
    if not found:
        raise ConfigError(f"no episode of {seen.count} in the file fits{seen.hint(choice)}")
    return found


def _fits(number: int, line: EpisodeLine, choice: Choice) -> bool:
    return (
        choice.episode in (0, number)
        and f"/{choice.task.strip('/')}/" in (f"/{line.task_id}/" if choice.task else "//")
        and choice.env in ("", line.env)
        and choice.source in ("", line.source)
        and choice.eval_set in ("", line.eval_set)
        and choice.reason in ("", line.reason)
        and (not choice.policy or any(_speaks(reply, choice.policy) for reply in line.replies))
    )


def _speaks(reply: ReplyLine, policy: str) -> bool:
    return policy in ("", reply.policy, reply.role)


class _Seen:
    """Names in the file, to say what was meant by one that isn't there."""

    def __init__(self) -> None:
        self.count = 0
        self._names: dict[str, set[str]] = {}

    def all_of(self, lines: Iterable[tuple[int, EpisodeLine]]) -> Iterator[tuple[int, EpisodeLine]]:
        for self.count, line in lines:
            self._saw(line)
            yield self.count, line

    def _saw(self, line: EpisodeLine) -> None:
        self._add("task", line.task_id)
        self._add("env", line.env)
        self._add("source", line.source)
        self._add("eval_set", line.eval_set)
        self._add("reason", line.reason)
        for reply in line.replies:
            self._add("policy", reply.policy)
            self._add("policy", reply.role)

    def _add(self, kind: str, name: str) -> None:
        names = self._names.setdefault(kind, set())
        if name and len(names) < _MOST_NAMES:
            names.add(name)

    def hint(self, choice: Choice) -> str:
        return "".join(self._hints(choice))

    def _hints(self, choice: Choice) -> Iterator[str]:
        if choice.episode > self.count:
            yield f"; they are numbered 1 to {self.count}"
        for kind, names in self._names.items():
            wanted: str = getattr(choice, kind)
            if not wanted or wanted in names:
                continue
            if kind == "task" and any(f"/{wanted.strip('/')}/" in f"/{name}/" for name in names):
                continue
            yield f"; no {kind.replace('eval_set', 'evaluation')} is {wanted!r}{nearest(wanted, names)}"
