"""Who works in a run: the roles of its processes and of the people who look at it, and what is true of each.

It says nothing of rights on the bus, which follow from the wiring. Invariant: a role's name is what `--role`, member
records, names of actors (`<role>-<node>-<k>`) and credentials files say, and `RoleOf` alone reads and writes
"policy:solver".
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Self


class Role(StrEnum):
    """The first five are actors: processes that a node starts. They stand in the order in which a run is drained."""

    ROLLOUT = "rollout"
    POLICY = "policy"
    DATAFLOW = "dataflow"
    TRAINER = "trainer"
    RECORDER = "recorder"
    NODE = "node"  # starts actors
    REGION = "region"  # keeps a leaf link's two sides together
    ADMIN = "admin"  # `up`: makes the streams and the run's record; unlimited in its run
    OBSERVER = "observer"  # who reads only: recorder, joining nodes, `status`
    USER = "user"  # people and their programs: read everything, submit tasks, give orders, may drain nodes

    @classmethod
    def drain_order(cls) -> tuple[Self, ...]:
        """The actors, in the order in which a run ends: who makes work goes before who takes it."""
        return tuple(role for role in cls if role.acts)

    @classmethod
    def with_a_key(cls) -> tuple[Self, ...]:
        """Whoever has credentials of its own on a secured bus; the others use the key of one of these."""
        return tuple(role for role in cls if role.key is role)

    @property
    def acts(self) -> bool:
        """Whether it is an actor: a process that a node starts."""
        return self in (Role.ROLLOUT, Role.POLICY, Role.DATAFLOW, Role.TRAINER, Role.RECORDER)

    @property
    def of_a_policy(self) -> bool:
        """Whether each process belongs to one policy; the other roles serve all of them."""
        return self in (Role.POLICY, Role.TRAINER)

    @property
    def computes(self) -> bool:
        """Whether it needs cores of its own for long."""
        return self in (Role.POLICY, Role.TRAINER)

    @property
    def takes_a_slot(self) -> bool:
        """Whether it counts against a node's cores; the others wait most of the time, as a node does."""
        return self not in (Role.DATAFLOW, Role.RECORDER)

    @property
    def away_from_home(self) -> bool:
        """Whether it can work behind a leaf link; what keeps the run's truth can't."""
        return self in (Role.ROLLOUT, Role.POLICY)

    @property
    def key(self) -> "Role":
        """Whose credentials it uses on a secured bus."""
        return Role.OBSERVER if self in (Role.RECORDER, Role.NODE, Role.REGION) else self

    @property
    def is_guest(self) -> bool:
        """Whether its key lets it into the guests' account only: it can't write the run's truth."""
        return self.key not in (Role.ADMIN, Role.DATAFLOW, Role.TRAINER)


@dataclass(frozen=True)
class RoleOf:
    """A role and the policy it belongs to; "" for roles that serve all policies. `str()` is what `--role` takes."""

    role: Role
    policy: str = ""

    def __str__(self) -> str:
        return f"{self.role}:{self.policy}" if self.policy else str(self.role)

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The reverse of `str()`; None for what isn't the name of an actor's role. The policy may be any."""
        name, _, policy = text.partition(":")
        return cls(Role(name), policy) if name in Role.drain_order() else None
