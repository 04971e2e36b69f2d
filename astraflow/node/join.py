"""`astraflow node --join`: another machine's part in a run that is already on the bus.

It waits until the run is there, reads its record, takes the roles that are needed and fit (or those of `--role`), and
leaves when the run ends or when it is told to. Files go to <folder>/<run>-<incarnation>: logs of every node, and what
trainer and recorder write. On a shared disk every node finds the others' checkpoints there.
"""

import asyncio
import re
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.console import Console

from astraflow.actors.base.connection import Connection
from astraflow.bus import NatsBus, topology_of
from astraflow.concurrency import first_of
from astraflow.config import from_json
from astraflow.messages import RunRecord
from astraflow.node.autojoin import AutoJoin
from astraflow.node.node import node_context, report_failure, say, supervise
from astraflow.node.preemption import Preemption
from astraflow.node.processes import NodeProcesses, parse_role
from astraflow.node.record import open_run
from astraflow.node.runfolder import disk_errors
from astraflow.node.stopper import Stopper
from astraflow.node.threads import usable_cores
from astraflow.view.live import live_view


def node_name(wanted: str = "") -> str:
    """The wanted name, or the machine's, with a random end: two nodes are different, whatever they are called."""
    name = re.sub(r"[^a-z0-9-]+", "-", (wanted or socket.gethostname().split(".")[0]).lower()).strip("-")
    return f"{name[:24] or 'node'}-{secrets.token_hex(2)}"


@dataclass(frozen=True, kw_only=True)
class JoinOptions:
    """Flags of `node`.

    Attributes:
        run: "" = the only one that is open.
        roles: `--role` arguments; none = whatever is needed, for as long as the run goes on.
        folder: files go to <folder>/<run>-<first digits of the run's incarnation>.
        name: how the node's name begins; "" = the machine's name.
        threads: cores to use; 0 = all that this process may.
        grace_s: time to drain; 0 = the run's node.grace_s.
        quiet: the run's progress is not shown, only what this node does.
    """

    run: str = ""
    roles: Sequence[str] = ()
    folder: Path = Path("runs")
    name: str = ""
    threads: int = 0
    grace_s: float = 0.0
    quiet: bool = False
    preemption: Preemption = field(default_factory=Preemption)


async def join(connection: Connection, options: JoinOptions, console: Console) -> int:
    """Take part until the run ends; the return value is the exit code. Raises ConfigError, BusError."""
    stopper = Stopper(partial(say, console))
    with stopper.listening():
        record = await _open_run(connection, options, stopper, console)
        if record is None:
            say(console, "this node leaves without having joined a run")
            return 0
        node = node_name(options.name)
        home = options.folder / f"{record.name}-{record.incarnation[:8]}"
        config = from_json(record.config_json)
        with disk_errors(home):
            (home / "logs").mkdir(parents=True, exist_ok=True)
        async with NatsBus.connect(
            connection.options(), topology_of(config, region=connection.region), producer=f"node-{node}"
        ) as bus:
            ctx = node_context(bus, record, node=node, folder=home)
            processes = NodeProcesses(
                config=config, node=node, connection=connection, folder=home, cores=usable_cores(options.threads)
            )
            processes.plan([parse_role(text, config) for text in options.roles])
            with_what = ", ".join(processes.planned) or "whatever role it needs"
            say(console, f"node {node} joins run {record.name} with {with_what}; logs in {home}")
            failure = await supervise(
                processes,
                ctx=ctx,
                options=connection.options(),
                console=console,
                stopper=stopper,
                view=_unseen if options.quiet else partial(live_view, bus, console),
                preemption=options.preemption,
                grace_s=options.grace_s or config.node.grace_s,
                autojoin=None
                if options.roles
                else AutoJoin(ctx, processes, report=partial(say, console, style="yellow")),
            )
        if failure:
            return report_failure(failure, console)
        say(console, f"node {node} left run {record.name}")
        return 130 if stopper.signals > 1 else 0


async def _unseen(over: asyncio.Event) -> None:
    await over.wait()


async def _open_run(
    connection: Connection, options: JoinOptions, stopper: Stopper, console: Console
) -> RunRecord | None:
    """The run to join, once there is one; None if this node is told to leave before that."""
    told = asyncio.Event()
    stopper.attach(drain=told.set, kill=told.set, sentence="")
    report = partial(say, console)
    return await first_of(
        open_run(connection, options.run, report), told.wait(), options.preemption.noticed(report=report)
    )
