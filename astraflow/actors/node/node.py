"""One machine's part in a run: which actor processes it starts, and keeping them running until the run ends.

`up` (up.py) is a node with every role and perhaps a server; `join` is a node that reads the run from the bus.
Shutdown order: rollout, policy, dataflow, trainer, recorder, all within the grace time (supervisor.py).
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from astraflow.actors.base.connection import Connection, bus_role
from astraflow.actors.base.context import ActorContext
from astraflow.actors.base.heartbeat import Heartbeat
from astraflow.actors.node.orders import Orders
from astraflow.actors.node.preemption import Preemption
from astraflow.actors.node.stopper import Stopper
from astraflow.actors.node.supervisor import Failure, ProcessSpec, Supervisor, last_lines
from astraflow.actors.node.threads import COMPUTE_ROLES, process_environment, share
from astraflow.bus import Bus, BusOptions
from astraflow.config import RunConfig, from_json
from astraflow.errors import BusError, ConfigError
from astraflow.messages import MemberState, Progress, RunRecord

DRAIN_ORDER = ("rollout", "policy", "dataflow", "trainer", "recorder")
JOINABLE = ("policy", "rollout")


@dataclass(frozen=True, kw_only=True)
class Role:
    """`count` processes of one role; `policy` for roles that belong to one."""

    role: str
    policy: str = ""
    count: int = 1


def roles_of(config: RunConfig) -> list[Role]:
    """Every role of a run that lives on one machine. A frozen policy's trainer publishes it once and ends."""
    return [
        Role(role="dataflow", count=1 + config.dataflow.standbys),
        Role(role="recorder"),
        *(Role(role="policy", policy=name, count=p.engine.replicas) for name, p in config.policies.items()),
        *(Role(role="trainer", policy=name) for name in config.policies),
        Role(role="rollout", count=config.node.rollouts),
    ]


def joining_roles(texts: Sequence[str], config: RunConfig) -> list[Role]:
    """The roles of `--role` arguments such as `rollout` or `policy:solver`.

    Raises: ConfigError for a role that a joining node can't have, or an unknown policy.
    """
    roles: list[Role] = []
    for text in texts:
        role, _, policy = text.partition(":")
        if role not in JOINABLE:
            raise ConfigError(
                f"--role {text}: a joining node can be {' or '.join(JOINABLE)}; the others run once, in `up`"
            )
        if role == "policy" and policy not in config.policies:
            raise ConfigError(f"--role {text}: write policy:NAME with one of {', '.join(config.policies)}")
        if role == "rollout" and policy:
            raise ConfigError(f"--role {text}: a rollout serves all policies; write --role rollout")
        roles.append(Role(role=role, policy=policy, count=max(1, config.node.rollouts) if role == "rollout" else 1))
    return roles


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One process of a node, and what it is."""

    role: Role
    spec: ProcessSpec


def plan(
    roles: Sequence[Role], config: RunConfig, *, node: str, connection: Connection, folder: Path, cores: int
) -> list[Planned]:
    """The processes of a node, named `<role>-<node>-<k>`, each with its share of the cores. Raises ConfigError."""
    computing = [role for role in roles if _computes(role, config)]
    counts = {name: sum(role.count for role in computing if role.role == name) for name in COMPUTE_ROLES}
    threads = share(
        cores,
        policies=counts["policy"],
        trainers=counts["trainer"],
        policy_threads=config.node.policy_threads,
        trainer_threads=config.node.trainer_threads,
    )
    planned: list[Planned] = []
    numbers = dict.fromkeys(DRAIN_ORDER, 0)
    for role in roles:
        for _ in range(role.count):
            name = f"{role.role}-{node}-{numbers[role.role]}"
            numbers[role.role] += 1
            own = threads[role.role] if role in computing else 1
            command = [sys.executable, "-m", "astraflow.actors", "--role", role.role, "--name", name, "--node", node]
            own_connection = connection.for_role(bus_role(role.role))
            command += ["--run", config.run.name, *own_connection.flags()]
            command += ["--folder", str(folder), "--threads", str(own)]
            command += ["--policy", role.policy] if role.policy else []
            spec = ProcessSpec(
                name=name,
                command=tuple(command),
                environment=process_environment(own, base=os.environ) | own_connection.environment(),
                log_file=folder / "logs" / f"{name}.log",
                stage=DRAIN_ORDER.index(role.role),
            )
            planned.append(Planned(role=role, spec=spec))
    return planned


def _computes(role: Role, config: RunConfig) -> bool:
    """Whether it needs a share of the cores for long; the trainer of a frozen policy only publishes it."""
    return role.role == "policy" or (role.role == "trainer" and config.policies[role.policy].trainer is not None)


async def supervise(
    planned: Sequence[Planned],
    *,
    ctx: ActorContext,
    options: BusOptions,
    console: Console,
    stopper: Stopper,
    view: Callable[[asyncio.Event], Awaitable[None]],
    preemption: Preemption,
    grace_s: float,
) -> Failure | None:
    """Run the processes until the run ends or the node is stopped.

    Args:
        ctx: the node as a member of the run.
        options: for the node's heartbeat.
        view: shows the run until the event is set.
    Returns: why it went wrong, or None.
    """
    roles = {p.spec.name: p.role for p in planned}

    async def resume(spec: ProcessSpec) -> bool:
        return not orders.ended.is_set() and await still_needed(ctx.bus, roles[spec.name])

    def report(text: str) -> None:
        say(console, text, style="yellow")

    supervisor = Supervisor(
        [p.spec for p in planned],
        grace_s=grace_s,
        max_restarts=ctx.config.node.max_restarts,
        resume=resume,
        report=report,
        startable=ctx.bus.connected.wait,
    )
    orders = Orders(ctx, supervisor, report=report)
    stopper.attach(drain=orders.drain_node, kill=supervisor.kill)
    over = asyncio.Event()
    async with Heartbeat(ctx, options), asyncio.TaskGroup() as group:
        ctx.set_state(MemberState.READY)
        group.create_task(_view(view, over, console))
        followed = (orders.follow_run(), orders.follow_drains(), orders.follow_preemption(preemption))
        following = [group.create_task(job) for job in followed]
        failure = await supervisor.run()
        for task in following:
            task.cancel()
        over.set()
    return failure


def node_context(bus: Bus, record: RunRecord, *, node: str, folder: Path) -> ActorContext:
    """A node as a member of the run: `node-<name>`."""
    config = from_json(record.config_json)
    return ActorContext(
        bus=bus, config=config, record=record, folder=folder, name=f"node-{node}", role="node", node=node
    )


async def still_needed(bus: Bus, role: Role) -> bool:
    """Whether a process of this role that ended cleanly must be started again: somebody drained it, not the run."""
    try:
        if role.role == "trainer":
            entry = await bus.kv_get(f"progress.{role.policy}")
            if entry is not None and isinstance(entry.message, Progress) and entry.message.finished:
                return False
        record = await read_record(bus)
    except BusError:
        return True
    return record is None or not record.stop_requested


async def read_record(bus: Bus) -> RunRecord | None:
    """The run's record; None if the run was never started on this bus."""
    entry = await bus.kv_get("run")
    return entry.message if entry is not None and isinstance(entry.message, RunRecord) else None


async def _view(view: Callable[[asyncio.Event], Awaitable[None]], over: asyncio.Event, console: Console) -> None:
    try:
        await view(over)
    except* Exception as group:  # noqa: BLE001 - the supervisor: the run goes on without being watched
        say(console, f"the live view ended: {group.exceptions[0]}", style="yellow")


def report_failure(failure: Failure, console: Console) -> int:
    """Say why a node failed; the return value is the exit code. Raises ConfigError for a mistake of the user."""
    if failure.user_mistake:
        raise ConfigError(f"{failure.process}: {failure.text}")
    say(console, f"{failure.process} {failure.text}; the end of {failure.log_file}:", style="bold red")
    for line in last_lines(failure.log_file, 15):
        say(console, f"  {line}")
    return 1


def say(console: Console, text: str, *, style: str = "") -> None:
    """One line for people; text from elsewhere is never read as markup."""
    console.print(text, style=style or None, markup=False, highlight=False, soft_wrap=True)
