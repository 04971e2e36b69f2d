"""A node that takes roles as the run needs them, for as long as the run goes on.

It follows the members and asks `demand.py` again whenever something changed; it starts processes through the supervisor
and gives none up. What this node can't have, has been drained of, or has failed at is in its member record with the
reason: others take it, and `status` says why nobody does. Invariant: a role is in the member record before its process
is started.
"""

import asyncio
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import replace

from astraflow import clock
from astraflow.actors.base.context import ActorContext
from astraflow.concurrency import wait_at_most
from astraflow.errors import BusError, MessageError
from astraflow.messages import Manifest
from astraflow.messages.metric_names import NODE_FREE_SLOTS
from astraflow.messages.roles import RoleOf
from astraflow.node.capability import available_memory, machine
from astraflow.node.demand import Candidate, Patience, assigned, extras, lacks
from astraflow.node.processes import NodeProcesses, parse_role
from astraflow.node.supervisor import Failure, Supervisor
from astraflow.view.run_view import RunView

LOOK_EVERY_S = 0.5  # at least, and not much more often


class AutoJoin:
    """One node's part in sharing out the roles. `follow` runs until the run ends."""

    def __init__(self, ctx: ActorContext, processes: NodeProcesses, *, report: Callable[[str], None]) -> None:
        self._ctx = ctx
        self._processes = processes
        self._report = report
        self._here = machine(ctx.config, cores=processes.cores, connection=processes.connection)
        self._refused: dict[RoleOf, str] = {}  # drained or failed here
        self._model_bytes: dict[str, int] = {}
        self._patience = Patience()
        self._view = RunView()
        self._known = asyncio.Event()  # the view holds everything that there was
        self._changed = asyncio.Event()
        self._said: set[tuple[RoleOf, str]] = set()

    def failed(self, failure: Failure) -> None:
        """A process of this node won't be started again: somebody else may have more luck."""
        role = self._processes.planned[failure.process].role
        self._refused[role] = failure.text
        self._ctx.last_error = f"{failure.process}: {failure.text}"
        self._report(f"{failure.process} {failure.text}; this node doesn't take {role} any more")
        self._changed.set()

    async def follow(self, supervisor: Supervisor) -> None:
        """Take what is needed until the run ends, then close the supervisor."""
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watch())
            await self._known.wait()
            while not self._over():
                self._changed.clear()
                await self._consider(supervisor)
                await asyncio.sleep(LOOK_EVERY_S / 2)  # members tell much; not every word is worth a look
                await wait_at_most(self._changed, LOOK_EVERY_S / 2)
            watching.cancel()
        supervisor.close()

    def _over(self) -> bool:
        return self._view.record is not None and self._view.record.stop_requested != ""

    async def _watch(self) -> None:
        async with aclosing(self._ctx.bus.kv.watch("")) as updates:
            async for update in updates:
                self._view.apply(update.key, update.message, written_at=clock.wall() - update.age_s)
                self._changed.set()
                if not update.key:
                    self._known.set()

    async def _consider(self, supervisor: Supervisor) -> None:
        self._note_drained(supervisor)
        await self._learn_sizes()
        own = self._tell(supervisor)
        mine = assigned(self._view, self._ctx.node, own)
        due = self._patience.due(mine, clock.monotonic())
        if extras(self._view, own, reserved=mine):  # the queues decide which
            with suppress(BusError):  # a server that has just started lacks some for a moment
                self._view.queues = await self._ctx.bus.queues.depths()
        more = extras(self._view, own, reserved=mine)
        if (due or more) and not supervisor.draining:
            self._start(supervisor, [*due, *more], expected=[role for role in mine if role not in due])
        own = self._tell(supervisor)
        self._ctx.waits_for("" if own.held else "a role that is needed and that this machine can have")

    def _start(self, supervisor: Supervisor, roles: list[RoleOf], *, expected: list[RoleOf]) -> None:
        wanted, later = ([parse_role(str(role), self._ctx.config) for role in some] for some in (roles, expected))
        planned = self._processes.plan(wanted, expected=later, running=supervisor.names())
        self._ctx.roles = (*self._ctx.roles, *(str(each.role) for each in planned))
        self._report(f"node {self._ctx.node} takes {', '.join(each.spec.name for each in planned)}")
        for each in planned:
            supervisor.add(each.spec)

    def _tell(self, supervisor: Supervisor) -> Candidate:
        """Bring the member record up to date; what this node is for others."""
        held = [self._processes.planned[name].role for name in supervisor.names()]
        here = replace(self._here, memory_bytes=available_memory())
        reasons = lacks(self._view, here, self._model_bytes) | self._refused
        own = Candidate(
            free_slots=self._processes.cores - sum(role.role.takes_a_slot for role in held),
            lacks={role: why for role, why in reasons.items() if role not in held or role in self._refused},
            held=held,
        )
        self._ctx.roles = tuple(map(str, held))
        self._ctx.unserved = {str(role): why for role, why in own.lacks.items()}
        self._ctx.gauge(NODE_FREE_SLOTS, own.free_slots)
        for role, why in own.lacks.items():
            if (role, why) not in self._said and role not in self._refused:
                self._said.add((role, why))
                self._report(f"not {role}: {why}")
        return own

    def _note_drained(self, supervisor: Supervisor) -> None:
        for name in supervisor.drained():
            self._refused.setdefault(self._processes.planned[name].role, "it was drained from there")

    async def _learn_sizes(self) -> None:
        for policy, head in self._view.heads.items():
            if policy not in self._model_bytes:
                stream = self._ctx.bus.topology.weights(policy)
                with suppress(BusError, MessageError):  # then it is taken to fit
                    entry = await self._ctx.bus.logs.entry(stream, head.full_manifest_sequence)
                    if entry is not None and isinstance(entry.message, Manifest):
                        self._model_bytes[policy] = entry.message.size_bytes
