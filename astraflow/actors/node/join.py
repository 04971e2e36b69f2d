"""`astraflow node --join`: another machine's part in a run that is already on the bus.

It reads the run's record, starts the roles that fit, and leaves when the run ends or when it is told to.
"""

import re
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.console import Console

from astraflow.actors.base.connection import Connection
from astraflow.actors.base.context import ActorContext
from astraflow.actors.node.need import choose, machine, offers
from astraflow.actors.node.node import (
    Planned,
    joining_roles,
    node_context,
    plan,
    read_record,
    report_failure,
    say,
    supervise,
)
from astraflow.actors.node.preemption import Preemption
from astraflow.actors.node.stopper import Stopper
from astraflow.actors.node.threads import usable_cores
from astraflow.actors.view.live import live_view
from astraflow.actors.view.run import RunView
from astraflow.actors.view.status import read_view
from astraflow.bus import ApiError, Bus, BusRole, Topology, topology_of
from astraflow.config import from_json
from astraflow.errors import ConfigError
from astraflow.messages import Manifest, RunRecord

NOT_FOUND = 404


def node_name(wanted: str = "") -> str:
    """The wanted name, or the machine's, with a random end: two nodes are different, whatever they are called."""
    name = re.sub(r"[^a-z0-9-]+", "-", (wanted or socket.gethostname().split(".")[0]).lower()).strip("-")
    return f"{name[:24] or 'node'}-{secrets.token_hex(2)}"


async def fetch_record(connection: Connection, run: str, role: BusRole = BusRole.OBSERVER) -> RunRecord:
    """The run's record from the bus. Raises ConfigError if there is no such run, BusError."""
    bare = Topology(run=run, region=connection.region, envs=(), policies=())
    async with Bus.connect(connection.options(role), bare, producer="node") as bus:
        try:
            record = await read_record(bus)
        except ApiError as exc:
            if exc.code != NOT_FOUND:  # without streams there never was such a run
                raise
            record = None
    if record is None:
        raise ConfigError(f"there is no run {run!r} on {connection.url}; start it there with `astraflow up`")
    return record


@dataclass(frozen=True, kw_only=True)
class JoinOptions:
    """Flags of `node`.

    Attributes:
        roles: `--role` arguments; none = what fits this machine, the most needed first.
        folder: logs go to <folder>/<run>-<node>.
        name: how the node's name begins; "" = the machine's name.
        threads: cores to use; 0 = all that this process may.
        grace_s: time to drain; 0 = the run's node.grace_s.
    """

    run: str
    roles: Sequence[str] = ()
    folder: Path = Path("runs")
    name: str = ""
    threads: int = 0
    grace_s: float = 0.0
    preemption: Preemption = field(default_factory=Preemption)


async def join(connection: Connection, options: JoinOptions, console: Console) -> int:
    """Take part until the run ends; the return value is the exit code. Raises ConfigError, BusError."""
    stopper = Stopper(partial(say, console))
    with stopper.listening():
        record = await fetch_record(connection, options.run)
        if record.stop_requested:
            raise ConfigError(
                f"run {options.run!r} on {connection.url} has ended ({record.stop_requested}); nothing to join"
            )
        node = node_name(options.name)
        home = options.folder / f"{options.run}-{node}"
        home.mkdir(parents=True, exist_ok=True)
        topology = topology_of(from_json(record.config_json))
        async with Bus.connect(connection.options(), topology, producer=f"node-{node}") as bus:
            ctx = node_context(bus, record, node=node, folder=home)
            planned = await _plan(ctx, connection, options, console)
            names = ", ".join(each.spec.name for each in planned)
            say(console, f"node {node} joins run {options.run} with {names}; logs in {home}")
            failure = await supervise(
                planned,
                ctx=ctx,
                options=connection.options(),
                console=console,
                stopper=stopper,
                view=partial(live_view, bus, console),
                preemption=options.preemption,
                grace_s=options.grace_s or ctx.config.node.grace_s,
            )
        if failure:
            return report_failure(failure, console)
        say(console, f"node {node} left run {options.run}")
        return 130 if stopper.signals > 1 else 0


async def _plan(ctx: ActorContext, connection: Connection, options: JoinOptions, console: Console) -> list[Planned]:
    """The processes of this node. Raises ConfigError if no role fits this machine."""
    cores = usable_cores(options.threads)
    roles = options.roles or await _most_needed(ctx, cores, console)
    return plan(
        joining_roles(roles, ctx.config),
        ctx.config,
        node=ctx.node,
        connection=connection,
        folder=ctx.folder,
        cores=cores,
    )


async def _most_needed(ctx: ActorContext, cores: int, console: Console) -> list[str]:
    view = await read_view(ctx.bus)
    found = offers(view, machine(ctx.config, cores=cores), await _model_bytes(ctx.bus, view))
    for offer in found:
        if offer.why_not:
            say(console, f"not {offer.role}: {offer.why_not}", style="yellow")
    roles = choose(found, cores=cores)
    if not roles:
        reasons = "; ".join(f"{offer.role}: {offer.why_not}" for offer in found)
        raise ConfigError(f"no role of run {ctx.config.run.name!r} fits this machine ({reasons})")
    return roles


async def _model_bytes(bus: Bus, view: RunView) -> dict[str, int]:
    """Bytes of a full version by policy, of those that have one."""
    sizes = {}
    for policy, head in view.heads.items():
        entry = await bus.log_entry(bus.topology.weights(policy), head.full_manifest_sequence)
        if entry is not None and isinstance(entry.message, Manifest):
            sizes[policy] = entry.message.size_bytes
    return sizes
