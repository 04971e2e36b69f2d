"""Which roles a node takes up. Pure; every node of a run works out the same from the same view.

Two rules. A role that the run can't do without and that nobody has goes to the node with the most free slots of those
that can have it, whether or not it has a free slot: slow is better than stopped. And a node with a free slot serves
what has the longest queue per slot, once per role. Nothing is ever given up again, so that nothing can flap; a role
counts as held from the moment in which a node says that it takes it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from astraflow.config import EXTERNAL, RunConfig
from astraflow.messages import Member, MemberState
from astraflow.messages.metric_names import NODE_FREE_SLOTS, POLICY_SLOTS, ROLLOUT_SLOTS
from astraflow.messages.roles import Role, RoleOf
from astraflow.node.capability import Machine
from astraflow.view.run_view import RunView

_HOLD_S = 2.5
"""A role must be missing for so long before it is taken: longer than it takes a node to say what it takes."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A node that takes roles by need. `lacks`: roles that it can't have, and why. `held`: one for each process."""

    free_slots: int
    lacks: Mapping[RoleOf, str] = field(default_factory=dict)
    held: Sequence[RoleOf] = ()


def lacks(view: RunView, here: Machine, model_bytes: Mapping[str, int]) -> dict[RoleOf, str]:
    """The roles that this machine can't have, and why.

    Args: `model_bytes` of a full version by policy; a policy without one is taken to fit.
    """
    assert view.config is not None
    reasons: dict[RoleOf, str] = {}
    for policy in view.config.policies:
        size = model_bytes.get(policy, 0)
        reasons[RoleOf(Role.POLICY, policy)] = here.lacks_engine.get(policy, "") or here.lacks_memory(size, "serve")
        reasons[RoleOf(Role.TRAINER, policy)] = (
            here.lacks_learner.get(policy, "")
            or here.lacks_memory(size, "train")
            or ("" if _resumable(view, policy) else here.lacks_model.get(policy, ""))
        )
    envs = "; ".join(f"{env}: {reason}" for env, reason in here.lacks_env.items())
    reasons[RoleOf(Role.DATAFLOW)] = envs
    reasons[RoleOf(Role.ROLLOUT)] = envs if len(here.lacks_env) == len(view.config.envs) else ""
    for role, reason in here.lacks_key.items():
        reasons |= {each: reason for each in (*reasons, RoleOf(Role.RECORDER)) if each.role is role}
    return {role: reason for role, reason in reasons.items() if reason}


def _resumable(view: RunView, policy: str) -> bool:
    """Whether a trainer can start from the bus: no base model is needed then (trainer/resume.py)."""
    head, progress = view.heads.get(policy), view.progress.get(policy)
    return head is not None and head.step > 0 and progress is not None and progress.durable_batch > 0


def assigned(view: RunView, me: str, own: Candidate) -> list[RoleOf]:
    """The missing roles that fall to this node, the most important first. `own` is newer than the view."""
    nodes = {m.node: _candidate(m) for m in view.alive(Role.NODE) if NODE_FREE_SLOTS in m.gauges and _stays(m)}
    nodes[me] = own
    free = {name: node.free_slots for name, node in nodes.items()}
    mine = []
    for role in missing(view, me, own):
        able = [name for name, node in nodes.items() if role not in node.lacks and role not in node.held]
        if not able:
            continue
        taker = min(able, key=lambda name: (-free[name], name))
        free[taker] -= role.role.takes_a_slot
        if taker == me:
            mine.append(role)
    return mine


def missing(view: RunView, me: str = "", own: Candidate | None = None) -> list[RoleOf]:
    """The roles that the run needs and that nobody has; one that is needed twice may be there twice."""
    assert view.config is not None
    wanted = {RoleOf(Role.DATAFLOW): 1 + view.config.dataflow.standbys}
    for policy in view.config.policies:
        progress = view.progress.get(policy)
        wanted[RoleOf(Role.TRAINER, policy)] = 0 if progress is not None and progress.finished else 1
    wanted |= {RoleOf(Role.POLICY, policy): 1 for policy in view.config.policies}
    wanted |= {RoleOf(Role.ROLLOUT): int(_rollouts_play(view.config)), RoleOf(Role.RECORDER): 1}
    return [role for role, count in wanted.items() for _ in range(count - sum(holders(view, role, me, own).values()))]


def holders(view: RunView, role: RoleOf, me: str = "", own: Candidate | None = None) -> dict[str, int]:
    """How many processes of a role each node has, by what is seen of them or by what the node says, if that is more."""
    seen: dict[str, int] = {}
    for member in view.alive(role.role, role.policy):
        if _stays(member) and not _is_agent(member):
            seen[member.node] = seen.get(member.node, 0) + 1
    said = {m.node: m.roles.count(str(role)) for m in view.alive(Role.NODE) if _stays(m) and m.node != me}
    if own is not None:
        said[me] = own.held.count(role)
    return {node: max(seen.get(node, 0), said.get(node, 0)) for node in seen | said}


def extras(view: RunView, own: Candidate, *, reserved: Sequence[RoleOf] = ()) -> list[RoleOf]:
    """What else this node serves, the longest queue per slot first. `reserved`: roles that will take slots too."""
    assert view.config is not None
    free = own.free_slots - sum(role.role.takes_a_slot for role in reserved)
    if view.config.run.deterministic:  # exactly one of each
        return []
    roles = [RoleOf(Role.POLICY, policy) for policy in view.config.policies]
    roles += [RoleOf(Role.ROLLOUT)] if _rollouts_play(view.config) else []
    open_to = [role for role in roles if role not in (*own.held, *own.lacks, *reserved)]
    return sorted(open_to, key=lambda role: -pressure(view, role))[: max(0, free)]


def pressure(view: RunView, role: RoleOf) -> float:
    """Messages that wait per slot that is there; inf = nobody serves it."""
    gauge = POLICY_SLOTS if role.role is Role.POLICY else ROLLOUT_SLOTS
    slots = sum(member.gauges.get(gauge, 0.0) for member in view.ready(role.role, role.policy))
    waiting = sum(
        depth
        for name, depth in view.queues.items()
        if (name == f"gen.{role.policy}" if role.policy else name.startswith("task."))
    )
    return waiting / slots if slots else math.inf


class Patience:
    """Roles that have been asked for without a break, and since when."""

    def __init__(self, hold_s: float = _HOLD_S) -> None:
        self._hold_s = hold_s
        self._since: dict[RoleOf, float] = {}

    def due(self, roles: Sequence[RoleOf], now: float) -> list[RoleOf]:
        """Those of `roles` that were asked for in every call of the last `hold_s` seconds."""
        self._since = {role: self._since.get(role, now) for role in roles}
        return [role for role in dict.fromkeys(roles) if now - self._since[role] >= self._hold_s]


def _rollouts_play(config: RunConfig) -> bool:
    """Whether some environment isn't left to agents that join."""
    return any(section.agent != EXTERNAL for section in config.envs.values())


def _is_agent(member: Member) -> bool:
    """Whether it is `astraflow agent`, which plays only its own environments and stays as long as it likes."""
    return member.actor == f"rollout-agent-{member.node}"


def _candidate(member: Member) -> Candidate:
    return Candidate(
        free_slots=int(member.gauges[NODE_FREE_SLOTS]),
        lacks={role: why for text, why in member.unserved.items() if (role := RoleOf.parse(text))},
        held=[role for text in member.roles if (role := RoleOf.parse(text))],
    )


def _stays(member: Member) -> bool:
    return member.state not in (MemberState.DRAINING, MemberState.GONE)
