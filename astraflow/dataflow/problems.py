"""What keeps a run from getting anywhere, in sentences for people: how many, why, and what to do.

It changes nothing in what is played or trained, and isn't in snapshots: what is wrong shows itself again. Invariant: a
problem goes away by itself when what it tells of has ended.
"""

from collections import Counter, deque
from typing import NamedTuple

from astraflow.config import EXTERNAL, SESSIONS, RunConfig
from astraflow.dataflow.judge import JudgedGroup
from astraflow.dataflow.ledger import Fate
from astraflow.messages import Episode

GROUPS_IN_A_ROW = 32  # where one group in ten teaches something, as many fail together in one run of thirty
UNTAKEN_S = 30.0  # agents that join may be a moment late
EPISODES_LOOKED_AT = 128  # for what is told when it is so in more than half of them
_FORKS, _FORK_REASON = "forks", "forks/"  # metrics of an episode, as rollouts count them


class Problem(NamedTuple):
    """One thing that is wrong."""

    kind: str  # the event's name
    subject: str  # the policy, source or environment
    times: int  # how often it was seen; grows while nothing changes
    text: str


class UntrainedInARow:
    """One policy's groups since the last one that may be trained."""

    def __init__(self, policy: str) -> None:
        self._policy = policy
        self._clear()

    def _clear(self) -> None:
        self._groups = self._episodes = 0
        self._reasons: Counter[str] = Counter()  # by group
        self._fates: Counter[Fate] = Counter()  # by member without a valid reward
        self._rewards: set[float] = set()  # two of them at most: whether there is more than one

    def see_group(self, group: JudgedGroup) -> None:
        """A group has closed."""
        if group.fate is Fate.BUFFERED:
            self._clear()
        if group.fate not in (Fate.FILTERED, Fate.SMALL_GROUP):
            return
        self._groups += 1
        self._episodes += len(group.members)
        self._reasons[group.reason] += 1
        self._fates.update(member.fate for member in group.members if member.fate is not None)
        self._rewards = set([*self._rewards, *group.rewards][:2]) if len(self._rewards) < 2 else self._rewards

    def problem(self) -> Problem | None:
        """None while it may be chance."""
        if self._groups < GROUPS_IN_A_ROW:
            return None
        reason, _ = self._reasons.most_common(1)[0]
        reasons = ", ".join(f"{name} {count:,}" for name, count in self._reasons.most_common())
        text = (
            f"{self._policy} learns nothing: its last {self._groups:,} groups ({self._episodes:,} episodes) were not "
            f"trained ({reasons}); {self._advice(reason)}"
        )
        return Problem("no-learning-signal", self._policy, self._groups, text)

    def _advice(self, reason: str) -> str:
        match reason:
            case Fate.SMALL_GROUP:
                return self._advice_on_failures()
            case "zero-advantage" if len(self._rewards) == 1:
                (reward,) = self._rewards
                return (
                    f"every reward was {reward:g}: read its replies in episodes.jsonl, then make the tasks easier or "
                    "harder, grade parts of an answer, or begin with another model"
                )
            case "zero-advantage":
                return (
                    "rewards were equal within each group: sample more answers per task (group_size), or choose tasks "
                    'of middling difficulty (select = { kind = "curriculum" })'
                )
            case "truncated":
                return "most replies were cut off: raise sampling.max_new_tokens, or ask for shorter ones"
        return f"filter {reason} dropped them: look at its drops(), or take it out of trainer.filters"

    def _advice_on_failures(self) -> str:
        fate, count = self._fates.most_common(1)[0] if self._fates else (None, 0)
        if fate is Fate.NO_TOKENS:
            return (
                f"in {count:,} episodes nothing that it sampled was rewarded: no agent asks {self._policy}, or none "
                f"rewards it; do both, or remove [policies.{self._policy}.trainer]"
            )
        failures = ", ".join(f"{name} {number:,}" for name, number in self._fates.most_common()) or "too few members"
        return f"their episodes failed ({failures}): see `astraflow status` and events.jsonl for the errors"


class UntakenTasks:
    """Queues of environments that others play, agents which join or clients, as long as nobody takes from them."""

    def __init__(self, config: RunConfig) -> None:
        start = {
            EXTERNAL: ("agents that join", f"`astraflow agent my_agent.py --join URL --run {config.run.name}`"),
            SESSIONS: ("clients that take sessions", "a script over `af.sessions(...)`, see docs/gateway.md"),
        }
        sections = config.envs.items()
        self._external = {name: start[section.agent] for name, section in sections if section.agent in start}
        self._since: dict[tuple[str, bool], tuple[float, int]] = {}  # by queue: from when on, tasks

    def see_queue(self, env: str, *, evaluation: bool, pending: int, open_tasks: int, now: float) -> None:
        """`pending` of the queue's `open_tasks` haven't been taken by anybody."""
        queue = (env, evaluation)
        if env in self._external and 0 < open_tasks <= pending:
            since, _ = self._since.get(queue, (now, 0))
            self._since[queue] = (since, open_tasks)
        else:
            self._since.pop(queue, None)

    def problems(self, now: float) -> list[Problem]:
        """Queues that have been like that for long."""
        return [
            Problem(
                "no-agent-joined",
                env,
                1,
                f"environment {env} is played by {self._external[env][0]}, and none has taken one of its {tasks:,} "
                f"{'evaluation ' if evaluation else ''}tasks for {now - since:.0f} s; start one: "
                f"{self._external[env][1]}",
            )
            for (env, evaluation), (since, tasks) in self._since.items()
            if now - since >= UNTAKEN_S
        ]


class RewrittenHistories:
    """Episodes whose agent or chat template rewrote what a policy had said: the rest of it is another trajectory."""

    def __init__(self) -> None:
        self._episodes: deque[dict[str, float]] = deque()  # the last ones: forks by reason
        self._rewritten = 0  # of them, those with any

    def see_episode(self, episode: Episode) -> None:
        """An episode of a training group that closed."""
        forks = {
            name.removeprefix(_FORK_REASON): count
            for name, count in episode.metrics.items()
            if name.startswith(_FORK_REASON) and count > 0
        }
        if not forks and episode.metrics.get(_FORKS, 0) > 0:
            forks["unknown"] = episode.metrics[_FORKS]
        self._episodes.append(forks)
        self._rewritten += bool(forks)
        if len(self._episodes) > EPISODES_LOOKED_AT:
            self._rewritten -= bool(self._episodes.popleft())

    def problem(self) -> Problem | None:
        """None unless it is the rule."""
        if self._rewritten * 2 <= EPISODES_LOOKED_AT:
            return None
        known = sorted({reason for forks in self._episodes for reason in forks})
        sums = {reason: sum(forks.get(reason, 0.0) for forks in self._episodes) for reason in known}
        reasons = ", ".join(f"{reason} {count:,.0f}" for reason, count in sums.items())
        text = (
            f"in {self._rewritten} of the last {len(self._episodes)} episodes a history was rewritten ({reasons}), so "
            "one conversation is trained as several trajectories, each with its whole prompt; send a policy's replies "
            "back as they came, its reasoning included"
        )
        return Problem("histories-rewritten", "episodes", 1, text)


def refusing_selector(source: str, kind: str, refused: int) -> Problem:
    """A selector that takes none of `refused` tasks: the next one is played all the same."""
    text = (
        f"the selector {kind} of source {source} refused {refused:,} tasks one after the other, so the next is played "
        f"all the same; look at its take(), or at its knobs under sources.{source}.select.args"
    )
    return Problem("selector-refuses", source, 1, text)
