"""The processes of one node: which roles there are, and the command line, environment and threads of each process.

It starts nothing (`supervisor.py`) and decides on no role (`demand.py`, `autojoin.py`). Names are `<role>-<node>-<k>`.
"""

import os
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from astraflow.actors.base.connection import Connection, bus_role
from astraflow.config import RunConfig
from astraflow.errors import ConfigError
from astraflow.node.child import ProcessSpec
from astraflow.node.threads import COMPUTE_ROLES, process_environment, share

DRAIN_ORDER = ("rollout", "policy", "dataflow", "trainer", "recorder")
OF_A_POLICY = ("policy", "trainer")
AWAY_FROM_HOME = ("rollout", "policy")  # what can work behind a leaf link


@dataclass(frozen=True, kw_only=True)
class Role:
    """`count` processes of one role; `policy` for roles that belong to one."""

    role: str
    policy: str = ""
    count: int = 1

    @property
    def text(self) -> str:
        """As `--role` takes it: `rollout`, `policy:solver`."""
        return f"{self.role}:{self.policy}" if self.policy else self.role


def roles_of(config: RunConfig) -> list[Role]:
    """Every role of a run that lives on one machine. A frozen policy's trainer publishes it once and ends."""
    return [
        Role(role="dataflow", count=1 + config.dataflow.standbys),
        Role(role="recorder"),
        *(Role(role="policy", policy=name, count=p.engine.replicas) for name, p in config.policies.items()),
        *(Role(role="trainer", policy=name) for name in config.policies),
        Role(role="rollout", count=config.node.rollouts),
    ]


def parse_role(text: str, config: RunConfig) -> Role:
    """The role of a `--role` argument such as `rollout` or `policy:solver`. Raises ConfigError."""
    role, _, policy = text.partition(":")
    if role not in DRAIN_ORDER:
        every = ", ".join(f"{name}:NAME" if name in OF_A_POLICY else name for name in sorted(DRAIN_ORDER))
        raise ConfigError(f"--role {text}: there is no such role; there are {every}")
    if role in OF_A_POLICY and policy not in config.policies:
        raise ConfigError(f"--role {text}: write {role}:NAME with one of {', '.join(config.policies)}")
    if role not in OF_A_POLICY and policy:
        raise ConfigError(f"--role {text}: a {role} serves all policies; write --role {role}")
    return Role(role=role, policy=policy, count=max(1, config.node.rollouts) if role == "rollout" else 1)


def serves_region(role: str, region: str, config: RunConfig) -> bool:
    """Whether a role can be in a region: what keeps the run's truth can't be away from home."""
    return region == config.bus.region or role in AWAY_FROM_HOME


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One process of a node, and what it is."""

    role: Role
    spec: ProcessSpec


@dataclass(kw_only=True)
class Crew:
    """Makes the processes of a node, and remembers them: a name is given once."""

    config: RunConfig
    node: str
    connection: Connection
    folder: Path
    cores: int
    members: dict[str, Planned] = field(default_factory=dict)  # by name, also those that have ended

    def enlist(
        self, roles: Sequence[Role], *, expected: Sequence[Role] = (), running: Collection[str] | None = None
    ) -> list[Planned]:
        """The processes of `roles`, with their share of the cores.

        Args:
            expected: roles that will come soon: cores are left for them.
            running: names of those that run now. They keep their threads; who comes later gets what an even share would
                be, so that threads may be more than cores after a takeover. None: there is no before and no later.
        Raises: ConfigError if fixed numbers of threads ask for more than there is, and `running` is None.
        """
        for role in roles:
            if not serves_region(role.role, self.connection.region, self.config):
                raise ConfigError(
                    f"--role {role.text}: it works only in the run's home region {self.config.bus.region}"
                )
        threads = self._threads([*roles, *expected], running)
        planned = []
        for role in roles:
            for _ in range(role.count):
                number = sum(member.role.role == role.role for member in self.members.values())
                name = f"{role.role}-{self.node}-{number}"
                own = threads[role.role] if self._computes(role) else 1
                self.members[name] = Planned(role=role, spec=self._spec(role, name, own))
                planned.append(self.members[name])
        return planned

    def _threads(self, roles: Sequence[Role], running: Collection[str] | None) -> dict[str, int]:
        computing = [role for role in roles if self._computes(role)]
        counts = {name: sum(role.count for role in computing if role.role == name) for name in COMPUTE_ROLES}
        node = self.config.node
        before = sum(self._computes(self.members[name].role) for name in running or ())
        asked = counts["policy"] * (node.policy_threads or 1) + counts["trainer"] * (node.trainer_threads or 1)
        if running is not None and (before or asked > self.cores):
            even = max(1, self.cores // max(1, before + sum(counts.values())))
            return {"policy": node.policy_threads or even, "trainer": node.trainer_threads or even}
        return share(
            self.cores,
            policies=counts["policy"],
            trainers=counts["trainer"],
            policy_threads=node.policy_threads,
            trainer_threads=node.trainer_threads,
        )

    def _computes(self, role: Role) -> bool:
        """Whether it needs a share of the cores for long; the trainer of a frozen policy only publishes it."""
        frozen = role.role == "trainer" and self.config.policies[role.policy].trainer is None
        return role.role in COMPUTE_ROLES and not frozen

    def _spec(self, role: Role, name: str, threads: int) -> ProcessSpec:
        connection = self.connection.for_role(bus_role(role.role))
        command = [sys.executable, "-m", "astraflow.actors", "--role", role.role, "--name", name, "--node", self.node]
        command += ["--run", self.config.run.name, *connection.flags()]
        command += ["--folder", str(self.folder), "--threads", str(threads), "--supervised"]
        command += ["--policy", role.policy] if role.policy else []
        return ProcessSpec(
            name=name,
            command=tuple(command),
            environment=process_environment(threads, base=os.environ) | connection.environment(),
            log_file=self.folder / "logs" / f"{name}.log",
            stage=DRAIN_ORDER.index(role.role),
        )
