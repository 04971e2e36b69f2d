"""The processes of one node: which roles there are, and the command line, environment and threads of each process.

It starts nothing (`supervisor.py`) and decides on no role (`demand.py`, `autojoin.py`). Names are `<role>-<node>-<k>`.
"""

import os
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from astraflow.actors.base.connection import Connection
from astraflow.config import RunConfig
from astraflow.errors import ConfigError
from astraflow.messages.roles import Role, RoleOf
from astraflow.node.child import ProcessSpec
from astraflow.node.threads import process_environment, share


@dataclass(frozen=True)
class _Wanted:
    """`count` processes of one role."""

    role: RoleOf
    count: int = 1


def roles_of(config: RunConfig) -> list[_Wanted]:
    """Every role of a run that lives on one machine. A frozen policy's trainer publishes it once and ends."""
    return [
        _Wanted(RoleOf(Role.DATAFLOW), 1 + config.dataflow.standbys),
        _Wanted(RoleOf(Role.RECORDER)),
        *(_Wanted(RoleOf(Role.POLICY, name), policy.engine.replicas) for name, policy in config.policies.items()),
        *(_Wanted(RoleOf(Role.TRAINER, name)) for name in config.policies),
        _Wanted(RoleOf(Role.ROLLOUT), config.node.rollouts),
    ]


def parse_role(text: str, config: RunConfig) -> _Wanted:
    """The role of a `--role` argument such as `rollout` or `policy:solver`. Raises ConfigError."""
    parsed = RoleOf.parse(text)
    if parsed is None:
        every = ", ".join(str(RoleOf(role, "NAME" if role.of_a_policy else "")) for role in sorted(Role.drain_order()))
        raise ConfigError(f"--role {text}: there is no such role; there are {every}")
    role, policy = parsed.role, parsed.policy
    if role.of_a_policy and policy not in config.policies:
        raise ConfigError(f"--role {text}: write {role}:NAME with one of {', '.join(config.policies)}")
    if policy and not role.of_a_policy:
        raise ConfigError(f"--role {text}: a {role} serves all policies; write --role {role}")
    return _Wanted(parsed, max(1, config.node.rollouts) if role is Role.ROLLOUT else 1)


def serves_region(role: Role, region: str, config: RunConfig) -> bool:
    """Whether a role can be in a region: what keeps the run's truth can't be away from home."""
    return region == config.bus.region or role.away_from_home


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One process of a node, and what it is."""

    role: RoleOf
    spec: ProcessSpec


@dataclass(kw_only=True)
class NodeProcesses:
    """Makes the processes of a node, and remembers them: a name is given once."""

    config: RunConfig
    node: str
    connection: Connection
    folder: Path
    cores: int
    planned: dict[str, Planned] = field(default_factory=dict)  # by name, also those that have ended

    def plan(
        self, wanted: Sequence[_Wanted], *, expected: Sequence[_Wanted] = (), running: Collection[str] | None = None
    ) -> list[Planned]:
        """The processes that are `wanted`, with their share of the cores.

        Args:
            expected: roles that will come soon: cores are left for them.
            running: names of those that run now. They keep their threads; who comes later gets what an even share would
                be, so that threads may be more than cores after a takeover. None: there is no before and no later.
        Raises: ConfigError if fixed numbers of threads ask for more than there is, and `running` is None.
        """
        for role in (each.role for each in wanted):
            if not serves_region(role.role, self.connection.region, self.config):
                raise ConfigError(f"--role {role}: it works only in the run's home region {self.config.bus.region}")
        threads = self._threads([*wanted, *expected], running)
        planned = []
        for role in (each.role for each in wanted for _ in range(each.count)):
            number = sum(other.role.role is role.role for other in self.planned.values())
            name = f"{role.role}-{self.node}-{number}"
            own = threads[role.role] if self._computes(role) else 1
            self.planned[name] = Planned(role=role, spec=self._spec(role, name, own))
            planned.append(self.planned[name])
        return planned

    def _threads(self, wanted: Sequence[_Wanted], running: Collection[str] | None) -> dict[Role, int]:
        computing = [each for each in wanted if self._computes(each.role)]
        policies, trainers = (
            sum(each.count for each in computing if each.role.role is role) for role in (Role.POLICY, Role.TRAINER)
        )
        node = self.config.node
        before = sum(self._computes(self.planned[name].role) for name in running or ())
        asked = policies * (node.policy_threads or 1) + trainers * (node.trainer_threads or 1)
        if running is not None and (before or asked > self.cores):
            even = max(1, self.cores // max(1, before + policies + trainers))
            return {Role.POLICY: node.policy_threads or even, Role.TRAINER: node.trainer_threads or even}
        return share(
            self.cores,
            policies=policies,
            trainers=trainers,
            policy_threads=node.policy_threads,
            trainer_threads=node.trainer_threads,
        )

    def _computes(self, role: RoleOf) -> bool:
        """Whether it needs a share of the cores for long; the trainer of a frozen policy only publishes it."""
        frozen = role.role is Role.TRAINER and self.config.policies[role.policy].trainer is None
        return role.role.computes and not frozen

    def _spec(self, role: RoleOf, name: str, threads: int) -> ProcessSpec:
        connection = self.connection.for_role(role.role)
        command = [sys.executable, "-m", "astraflow.actors", "--role", role.role, "--name", name, "--node", self.node]
        command += ["--run", self.config.run.name, *connection.flags()]
        command += ["--folder", str(self.folder), "--threads", str(threads), "--supervised"]
        command += ["--policy", role.policy] if role.policy else []
        return ProcessSpec(
            name=name,
            command=tuple(command),
            environment=process_environment(threads, base=os.environ) | connection.environment(),
            log_file=self.folder / "logs" / f"{name}.log",
            stage=Role.drain_order().index(role.role),
        )
