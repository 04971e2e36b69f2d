"""One machine's part in a run: which actor processes it starts, and keeping them running until the run ends.

`up` (up.py) is a node with every role and perhaps a server; `join` is a node that reads the run from the bus.
Shutdown order: rollout, policy, dataflow, trainer, recorder, all within the grace time (supervisor.py).
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from rich.console import Console

from astraflow.actors.base.context import ActorContext
from astraflow.actors.base.exits import last_lines
from astraflow.actors.base.heartbeat import Heartbeat
from astraflow.actors.base.run_record import read_record
from astraflow.bus import Bus, BusOptions, wiring
from astraflow.concurrency import innermost
from astraflow.config import from_json
from astraflow.errors import BusError, ProcessError
from astraflow.messages import PROCESS_FAILED, MemberState, Progress, RunRecord
from astraflow.messages.roles import Role, RoleOf
from astraflow.node.autojoin import AutoJoin
from astraflow.node.child import ProcessSpec
from astraflow.node.orders import NodeOrders
from astraflow.node.preemption import Preemption
from astraflow.node.processes import NodeProcesses
from astraflow.node.stopper import Stopper
from astraflow.node.supervisor import Failure, Supervisor

UP_NODE = "local"  # the name of the node that `up` is
_TOLD_WITHIN_S = 5.0


async def supervise(
    processes: NodeProcesses,
    *,
    ctx: ActorContext,
    options: BusOptions,
    console: Console,
    stopper: Stopper,
    view: Callable[[asyncio.Event], Awaitable[None]],
    preemption: Preemption,
    grace_s: float,
    autojoin: AutoJoin | None = None,
) -> Failure | None:
    """Run the processes until the run ends or the node is stopped.

    Args:
        autojoin: adds to them as the run needs it; None = it stays as it is, and one that fails takes all with it.
        ctx: the node as a member of the run.
        options: for the node's heartbeat.
        view: shows the run until the event is set.
    Returns: why it went wrong, or None.
    """

    async def resume(spec: ProcessSpec) -> bool:
        return not orders.ended.is_set() and await _still_needed(ctx.bus, processes.planned[spec.name].role)

    def tell_roles() -> None:
        ctx.roles = tuple(str(processes.planned[name].role) for name in supervisor.names())

    def report(text: str) -> None:
        say(console, text, style="yellow")

    async def tell(failure: Failure) -> None:
        with contextlib.suppress(BusError, TimeoutError):  # a server that is gone may be what failed
            async with asyncio.timeout(_TOLD_WITHIN_S):
                text = f"{failure.process}: {failure.text}"
                fields = {"process": failure.process, "log": str(failure.log_file), "ends": autojoin is None}
                await ctx.bus.event("error", PROCESS_FAILED, text, **fields)

    supervisor = Supervisor(
        [planned.spec for planned in processes.planned.values()],
        grace_s=grace_s,
        max_restarts=ctx.config.node.max_restarts,
        resume=resume,
        report=report,
        ranks_lost=partial(ctx.bus.event, "warning", "ranks-lost"),
        startable=ctx.bus.link.up.wait,
        stays=autojoin.failed if autojoin is not None else None,
        tell=tell,
    )
    if 0 < preemption.lead_s < grace_s:
        report(
            f"node.grace_s is {grace_s:g} s, and {preemption.cloud} gives {preemption.lead_s:g} s: after its notice "
            f"all processes are told to end at once"
        )
    orders = NodeOrders(ctx, supervisor, report=report, drained=tell_roles)
    tell_roles()
    stopper.attach(drain=orders.drain_node, kill=supervisor.kill)
    over = asyncio.Event()
    async with Heartbeat(ctx, options, tell=report), asyncio.TaskGroup() as group:
        ctx.set_state(MemberState.READY)
        group.create_task(_view(view, over, console))
        followed = (orders.follow_run(), orders.follow_drains(), orders.follow_preemption(preemption))
        following = [group.create_task(job) for job in followed]
        if autojoin is not None:
            following.append(group.create_task(autojoin.follow(supervisor)))
        failure = await supervisor.run()
        for task in following:
            task.cancel()
        over.set()
    return failure


def node_context(bus: Bus, record: RunRecord, *, node: str, folder: Path) -> ActorContext:
    """A node as a member of the run: `node-<name>`."""
    config = from_json(record.config_json)
    return ActorContext(
        bus=bus, config=config, record=record, folder=folder, name=f"node-{node}", role=Role.NODE, node=node
    )


async def _still_needed(bus: Bus, role: RoleOf) -> bool:
    """Whether a process of this role that ended cleanly must be started again: somebody drained it, not the run."""
    try:
        if role.role is Role.TRAINER:
            entry = await bus.kv.get(wiring.PROGRESS.key(role.policy))
            if entry is not None and isinstance(entry.message, Progress) and entry.message.finished:
                return False
        record = await read_record(bus)
    except BusError:
        return True
    return record is None or not record.stop_requested


async def _view(view: Callable[[asyncio.Event], Awaitable[None]], over: asyncio.Event, console: Console) -> None:
    try:
        await view(over)
    except* Exception as group:  # noqa: BLE001 - the supervisor: the run goes on without being watched
        say(console, f"the live view ended: {innermost(group)}", style="yellow")


def report_failure(failure: Failure, console: Console) -> int:
    """Say why a node failed; the return value is the exit code. Raises ProcessError if the process has said it all."""
    if failure.told:
        raise ProcessError(f"{failure.process}: {failure.text}")
    say(console, f"{failure.process} {failure.text}; the end of {failure.log_file}:", style="bold red")
    for line in last_lines(failure.log_file, 15):
        say(console, f"  {line}")
    return 1


def say(console: Console, text: str, *, style: str = "") -> None:
    """One line for people; text from elsewhere is never read as markup."""
    console.print(text, style=style or None, markup=False, highlight=False, soft_wrap=True)
