"""A run as seen from outside: what the KV, the metrics and the events said so far, and what follows from it.

Pure: it is fed by `status` (once) and `live` (for as long as it runs) and never talks to the bus. Sentences about who
waits for whom and what is missing are made here, so that every view says the same.
"""

import math
from collections import deque
from dataclasses import dataclass, field

import msgspec

from astraflow.bus import wiring
from astraflow.config import RunConfig, from_json
from astraflow.messages import (
    FINISHED,
    Event,
    Head,
    Ledger,
    Member,
    MemberState,
    Message,
    Progress,
    Region,
    RunRecord,
    is_goal,
)
from astraflow.messages.metric_names import (
    DATAFLOW_FAILED_ALL,
    DATAFLOW_READY_GROUPS,
    DATAFLOW_REWARD_ALL,
    POLICY_TOKENS_PER_S,
    POLICY_VERSION,
    TRAIN_REWARD_MEAN,
)
from astraflow.messages.roles import Role, RoleOf
from astraflow.view.history import History
from astraflow.view.wording import clock, counts, duration

_KEPT_EVENTS = 50


class WaitsFor(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who is idle, and why."""

    who: str
    waits_for: str
    since: float  # unix seconds


@dataclass
class RunView:
    """Everything known about a run. `gone` are members that said goodbye or whose record expired."""

    record: RunRecord | None = None
    config: RunConfig | None = None
    members: dict[str, Member] = field(default_factory=dict)  # by actor, alive only
    gone: dict[str, Member | None] = field(default_factory=dict)  # None: nothing but the name is known
    heads: dict[str, Head] = field(default_factory=dict)  # by policy, as are the next two
    progress: dict[str, Progress] = field(default_factory=dict)
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    unstored: str = ""  # why the server stores nothing, if somebody has tried
    regions: dict[str, Region] = field(default_factory=dict)  # that joined over a leaf link
    queues: dict[str, int] = field(default_factory=dict)  # pending messages, e.g. by "task.math", "gen.solver"
    history: History = field(default_factory=History)
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=_KEPT_EVENTS))

    def apply(self, key: str, message: Message | None, *, written_at: float | None = None) -> None:
        """Take one KV value in; None = the key was deleted or expired. Keys of other readers are ignored.

        `written_at`: unix seconds by the clock of who looks, which all times of the view are by; None = the writer's
        clock is the same.
        """
        match message:
            case RunRecord():
                self.record, self.config = message, from_json(message.config_json)
            case Head():
                self.heads[message.policy] = message
            case Progress():
                self.progress[message.policy] = message
            case Ledger():
                self.ledgers[message.policy] = message
            case Region():
                seen_at = message.seen_at if written_at is None else written_at
                self.regions[message.region] = msgspec.structs.replace(message, seen_at=seen_at)
            case Member(state=MemberState.GONE):
                self.members.pop(message.actor, None)
                self.gone[message.actor] = _readable(message, written_at)
            case Member():
                self.gone.pop(message.actor, None)
                self.members[message.actor] = _readable(message, written_at)
            case None if key.startswith(wiring.MEMBER.prefix):
                actor = key.removeprefix(wiring.MEMBER.prefix)
                self.gone[actor] = self.members.pop(actor, self.gone.get(actor))

    def heard_of(self, actor: str) -> None:
        """An actor said something lately. Without a member record it is gone: an expired key leaves no trace."""
        parts = actor.split("-")
        if parts[0] in Role.drain_order() and parts[-1].isdecimal() and actor not in self.members:
            self.gone.setdefault(actor, None)

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do: all steps are done, or the run's goal is reached."""
        why = self.record.stop_requested if self.record is not None else ""
        return why == FINISHED or is_goal(why)

    @property
    def leaving(self) -> bool:
        """Every node drains, or the run was told to stop: who is missing has left as it was to."""
        nodes = self.alive(Role.NODE)
        stopped = self.record is not None and self.record.stop_requested != ""
        return stopped or (bool(nodes) and all(node.state is MemberState.DRAINING for node in nodes))

    def alive(self, role: str, policy: str = "") -> list[Member]:
        """Members of a role (and policy, if given) that are not gone."""
        return [m for m in self.members.values() if m.role == role and policy in ("", m.policy)]

    def ready(self, role: str, policy: str = "") -> list[Member]:
        return [m for m in self.alive(role, policy) if m.state == MemberState.READY]

    def tokens_per_s(self, policy: str) -> float:
        """Sampled tokens per second, over the policy's replicas."""
        return sum(m.gauges.get(POLICY_TOKENS_PER_S, 0.0) for m in self.alive(Role.POLICY, policy))

    def serving(self, policy: str) -> tuple[int, int] | None:
        """Oldest and newest version that a replica serves; None if none says so."""
        versions = [
            int(m.gauges[POLICY_VERSION]) for m in self.ready(Role.POLICY, policy) if POLICY_VERSION in m.gauges
        ]
        return (min(versions), max(versions)) if versions else None

    def rewards(self, policy: str) -> list[tuple[int, float]]:
        """(step or batch, mean reward): of all training episodes where dataflow says so, else of the samples."""
        history = self.history.of(policy)
        return history.series(DATAFLOW_REWARD_ALL, flow=True) or history.series(TRAIN_REWARD_MEAN)

    def failed(self, policy: str) -> float:
        """Episodes that the newest of these rewards leaves out, as far as dataflow says."""
        counts = self.history.of(policy).series(DATAFLOW_FAILED_ALL, flow=True)
        return counts[-1][1] if counts else 0.0

    def waits(self) -> list[WaitsFor]:
        """Who waits for what, the longest first; members with the same role and sentence are one row."""
        rows: dict[tuple[str, str, str], list[Member]] = {}
        for member in self.members.values():
            if member.waits_for:
                rows.setdefault((member.role, member.policy, member.waits_for), []).append(member)
        waits = []
        for (role, policy, sentence), members in rows.items():
            who = f"{role} {policy}".strip()
            if (all_of_them := len(self.alive(role, policy))) > 1:
                who += f" ({len(members)} of {all_of_them})"
            sentence += self._groups_ready(role, policy, sentence)
            waits.append(WaitsFor(who=who, waits_for=sentence, since=min(m.waits_since for m in members)))
        return sorted(waits, key=lambda wait: (wait.since, wait.who))

    def _groups_ready(self, role: str, policy: str, sentence: str) -> str:
        """How much of the batch that a trainer waits for is there."""
        trainer = self.config.policies[policy].trainer if self.config and policy in self.config.policies else None
        gauge = DATAFLOW_READY_GROUPS.of(policy)
        ready = [int(m.gauges[gauge]) for m in self.alive(Role.DATAFLOW) if gauge in m.gauges]
        if role != Role.TRAINER or trainer is None or not ready or not sentence.startswith("batch "):
            return ""
        return f": {max(ready)} of {trainer.batch_groups} groups"

    def problems(self, *, with_coming: bool = True) -> list[str]:
        """What keeps the run from going on or needs a person, one sentence each; empty when all is well.

        `with_coming=False` leaves out what an actor that is about to be ready will solve.
        """
        if self.config is None or self.finished:
            return []
        unstored = [f"nats-server stores nothing: {self.unstored}"] if self.unstored else []
        return (
            unstored
            + ([] if self.leaving else self._missing(self.config, with_coming))
            + self._cut_off()
            + [sentence for actor in sorted(self.members) for sentence in _complaints(self.members[actor])]
        )

    def _missing(self, config: RunConfig, with_coming: bool) -> list[str]:
        waiting = counts({name.removeprefix("task."): n for name, n in self.queues.items() if name.startswith("task.")})
        absent = [
            (RoleOf(Role.DATAFLOW), "no dataflow: no tasks are issued"),
            (RoleOf(Role.ROLLOUT), "0 rollout nodes" + ("" if waiting == "none" else f": tasks wait ({waiting})")),
        ]
        for name, section in config.policies.items():
            pending = self.queues.get(f"gen.{name}", 0)
            tail = f": {pending:,} requests wait" if pending else ""
            absent.append((RoleOf(Role.POLICY, name), f"no policy replica for {name}{tail}"))
            progress = self.progress.get(name)
            if section.trainer and not (progress and progress.finished):
                done = f"{progress.step if progress else 0} of {section.trainer.steps} steps are done"
                absent.append((RoleOf(Role.TRAINER, name), f"no trainer for {name}: {done}"))
        return self._unserved(config) + [
            sentence + self._why_absent(of)
            for of, sentence in absent
            if not self.ready(of.role, of.policy) and (with_coming or not self.alive(of.role, of.policy))
        ]

    def _cut_off(self) -> list[str]:
        """Regions whose keepers aren't heard any more, though they said no goodbye."""
        return [
            f"region {region.region}: cut off since {clock(region.seen_at)}, {len(region.members):,} members unseen, "
            f"{region.tasks:,} tasks there"
            for _, region in sorted(self.regions.items())
            if not region.left and f"region-{region.region}" not in self.members
        ]

    def _unserved(self, config: RunConfig) -> list[str]:
        """Environments that none of the rollouts can run."""
        rollouts = self.ready(Role.ROLLOUT)
        nobody = [env for env in config.envs if rollouts and all(env in m.unserved for m in rollouts)]
        waiting = {env: self.queues.get(f"task.{env}", 0) + self.queues.get(f"task.{env}.eval", 0) for env in nobody}
        return [f"no rollout can run environment {env}: {count:,} tasks wait" for env, count in waiting.items()]

    def _why_absent(self, of: RoleOf) -> str:
        coming = [f"{m.actor} is {m.state.value.replace('_', ' ')}" for m in self.alive(of.role, of.policy)]
        gone = [m for m in self.gone.values() if m and m.role == of.role and of.policy in ("", m.policy)]
        lost = [f"{member.actor} is gone" for member in gone]
        details = ", ".join([*sorted(coming or lost), *self._why_not_taken(of)])
        return f" ({details})" if details else ""

    def _why_not_taken(self, of: RoleOf) -> list[str]:
        """Why the nodes that take roles by need don't take this one; those with the same reason in one part."""
        text = str(of)
        nodes: dict[str, list[str]] = {}
        for member in self.alive(Role.NODE):
            if text in member.unserved:
                nodes.setdefault(member.unserved[text], []).append(member.node)
        return [f"not on {', '.join(sorted(names))}: {reason}" for reason, names in nodes.items()]


def _complaints(member: Member) -> list[str]:
    out = []
    if member.stuck_frame:
        out.append(f"{member.actor} is stuck since {duration(member.loop_lag_s)} in {member.stuck_frame}")
    if member.role != Role.NODE:  # what a node can't have matters only where nobody has it
        out += [f"{member.actor} isn't given {env}: {reason}" for env, reason in member.unserved.items()]
    if member.blocked:
        out.append(f"{member.actor} can't store since {clock(member.blocked_since)}: {member.blocked}")
    out += member.problems
    if member.last_error:
        out.append(f"{member.actor}: {member.last_error}")
    return out


def _readable(member: Member, written_at: float | None) -> Member:
    """The record with times by the reader's clock, and without numbers that nobody can reckon with: anybody may write
    one."""

    def moment(since: float, age_s: float) -> float:
        at = since if written_at is None or not age_s >= 0.0 else written_at - age_s
        return at if abs(at) < 1e12 else 0.0

    return msgspec.structs.replace(
        member,
        gauges={name: value for name, value in member.gauges.items() if math.isfinite(value)},
        since=moment(member.since, member.state_s),
        waits_since=moment(member.waits_since, member.waits_s),
        blocked_since=moment(member.blocked_since, member.blocked_s),
    )
