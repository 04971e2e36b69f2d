"""What a node is told from outside while its processes run: drains, preemption notices, the end of the run.

It follows the bus and this machine and passes on to the supervisor; it starts nothing. An order is a KV value
(`drain.<actor or node>`), so a node that was cut off finds it when it is back. The node carries out orders for its
actors: it can kill one that doesn't end, and it knows not to start it again.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing

import msgspec

from astraflow import clock
from astraflow.actors.base.context import ActorContext
from astraflow.bus import Bus, wiring
from astraflow.errors import FencedError
from astraflow.messages import STOPPED, Drain, MemberState, RunRecord
from astraflow.node.preemption import Preemption
from astraflow.node.supervisor import Supervisor

_LAST_S = 5.0  # of a notice: for what comes after the actors, and for a clock that isn't ours
_FINISH_S = 120.0
"""After the end of the run: time for the recorder's picture and the final model, before what is left is drained."""
_ORDER_TTL_S = 86_400  # a node that is cut off for longer doesn't hear of it


class NodeOrders:
    """Orders to one node. `ended` is set, and `why_ended` says so, when the run has ended as far as this node knows."""

    def __init__(
        self, ctx: ActorContext, supervisor: Supervisor, *, report: Callable[[str], None], drained: Callable[[], None]
    ) -> None:
        """`drained` is called when one of the actors was told to leave."""
        self._ctx = ctx
        self._drained = drained
        self._supervisor = supervisor
        self._report = report
        self.ended = asyncio.Event()
        self.why_ended = ""

    async def follow_run(self) -> None:
        """When the run has ended, actors leave by themselves; whatever is still there after a while is told to."""
        async with aclosing(self._ctx.bus.kv.watch(wiring.RUN.key())) as updates:
            async for update in updates:
                if isinstance(update.message, RunRecord) and update.message.stop_requested:
                    self.why_ended = update.message.stop_requested
                    self.ended.set()
                    break
        await asyncio.sleep(_FINISH_S)
        self._supervisor.drain()

    async def follow_drains(self) -> None:
        """Carry out drains of this node or of one of its actors."""
        async with aclosing(self._ctx.bus.kv.watch(wiring.DRAIN.prefix)) as updates:
            async for update in updates:
                if isinstance(update.message, Drain):
                    self._drain(update.message)

    def _drain(self, order: Drain) -> None:
        by = f", asked by {order.requested_by}" if order.requested_by else ""
        if order.target == self._ctx.node:
            self._report(f"draining this node{by}")
            self.drain_node()
        elif self._supervisor.drain_one(order.target):
            self._drained()
            self._report(f"draining {order.target}{by}; it isn't started again")

    async def follow_preemption(self, preemption: Preemption) -> None:
        """Drain this node when a notice comes."""
        notice = await preemption.noticed(report=self._report)
        text = f"node {self._ctx.node} is preempted: {notice.text}; draining"
        self._report(text)
        self.drain_node(within_s=None if notice.left_s is None else max(notice.left_s - _LAST_S, 1.0))
        await self._ctx.bus.event("warning", "preempted", text, node=self._ctx.node)

    def drain_node(self, within_s: float | None = None) -> None:
        """Stop everything of this node; see `Supervisor.drain`."""
        if not self._supervisor.draining:
            self._ctx.set_state(MemberState.DRAINING)
        self._supervisor.drain(within_s)


async def order_drain(bus: Bus, target: str, *, by: str) -> None:
    """Tell an actor or a node to leave."""
    order = Drain(target=target, requested_at=clock.wall(), requested_by=by)
    await bus.kv.put(wiring.DRAIN.key(target), order, ttl_s=_ORDER_TTL_S)


async def forget_orders(bus: Bus, targets: Sequence[str]) -> None:
    """Take back what these were told: they are wanted again."""
    for key in await bus.kv.entries(wiring.DRAIN.prefix):
        if key.removeprefix(wiring.DRAIN.prefix) in targets:
            await bus.kv.delete(key)


async def stop_run(bus: Bus) -> str:
    """Ask every actor to end; returns why the run had ended before, "" if it hadn't."""
    while True:
        entry = await bus.kv.get(wiring.RUN.key())
        assert entry is not None, "the caller has read it"
        assert isinstance(entry.message, RunRecord), entry
        if entry.message.stop_requested:
            return entry.message.stop_requested
        stopped = msgspec.structs.replace(entry.message, stop_requested=STOPPED)
        try:
            await bus.kv.put(wiring.RUN.key(), stopped, expected_revision=entry.revision)
        except FencedError:  # dataflow ended it, or somebody else stopped it: look again
            continue
        return ""
