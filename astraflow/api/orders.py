"""What a script wants of a live run: tasks of its own, a pause, an evaluation, another value of a knob.

Everything is stored before it is done, so it outlives every process. It reads nothing but the answers to its orders.
"""

import asyncio
import uuid
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from astraflow.bus import Bus
from astraflow.config import RunConfig
from astraflow.dataflow.submissions import MOST_MEMBERS, PREFIX, index_of
from astraflow.dataflow.tasks import trained_by
from astraflow.errors import BusError, ConfigError
from astraflow.messages import Control, ControlKind, Event, Submission
from astraflow.messages.ids import GroupKey, group_id
from astraflow.named import nearest


class RunOrders:
    """Orders to one run's dataflow."""

    def __init__(self, bus: Bus, config: RunConfig, incarnation: str) -> None:
        self.config = config
        self._bus = bus
        self._incarnation = incarnation

    async def submit(self, env: str, payload: Mapping[str, Any], *, group_size: int = 0) -> str:
        """Have a task played and trained, ahead of what the sources have. Returns its group's id: `Episode.group_id`.

        It is durable when this returns, and issued when a policy that it feeds has credit; a group that isn't trained
        says why in `status`. The same payload twice is two tasks.

        Args:
            payload: what the environment's own `task(index)` would give: small, JSON-like.
            group_size: episodes of the task; 0 = as the environment's sources have it.
        Raises: ConfigError for an unknown environment, one that trains nothing, or a deterministic run.
        """
        run = self.config.run.name
        if env not in self.config.envs:
            raise ConfigError(f"run {run} has no environment {env!r}{nearest(env, self.config.envs)}")
        if self.config.run.deterministic:
            raise ConfigError(f"run {run} is deterministic: what comes when is not repeatable")
        if not trained_by(self.config, env):
            raise ConfigError(f"environment {env} trains no policy of run {run}")
        if not 0 <= group_size <= MOST_MEMBERS:
            raise ConfigError(f"group_size is {group_size}, expected 1 to {MOST_MEMBERS}, or 0")
        self._at_home()
        submission = Submission(env=env, payload=dict(payload), group_size=group_size)
        message_id = uuid.uuid4().hex
        await self._bus.publish(self._bus.topology.submission(), submission, msg_id=message_id)
        return group_id(self._incarnation, GroupKey(f"{PREFIX}{env}", 0, index_of(message_id)))

    async def pause(self, *, within_s: float = 10.0) -> None:
        """Issue no more tasks; what runs goes on. A pause outlives every process. Raises as `set`."""
        await self._order(ControlKind.PAUSE, within_s=within_s)

    async def resume(self, *, within_s: float = 10.0) -> None:
        """Go on issuing tasks. Raises as `set`."""
        await self._order(ControlKind.RESUME, within_s=within_s)

    async def stop(self, *, within_s: float = 10.0) -> None:
        """End the run everywhere, as `astraflow stop` does: `up` or `submit` continues it. Raises as `set`."""
        await self._order(ControlKind.STOP, within_s=within_s)

    async def evaluate(self, name: str, *, within_s: float = 10.0) -> None:
        """Begin a round of [eval.<name>] now; its scores are metrics of kind eval. Raises as `set`."""
        await self._order(ControlKind.EVALUATE, name, within_s=within_s)

    async def set(self, knob: str, value: Any, *, within_s: float = 10.0) -> None:
        """Change a data algorithm's knob from now on, e.g. `sources.math.select.args.target`; it outlives restarts.

        Raises: ConfigError if dataflow refuses it; BusError if nobody has carried it out in time: the order is stored
            and will be when a dataflow is there.
        """
        await self._order(ControlKind.SET, knob, value, within_s=within_s)

    def _at_home(self) -> None:
        """Raises ConfigError in another region: orders and submissions don't cross the link."""
        topology = self._bus.topology
        if not topology.at_home:
            raise ConfigError(
                f"region {topology.region} passes on no orders and submissions of run {topology.run}; connect to its "
                f"home server, region {topology.home}"
            )

    async def _order(self, kind: ControlKind, name: str = "", value: Any = None, *, within_s: float) -> None:
        """Store an order, and wait until dataflow says what came of it."""
        self._at_home()
        order = Control(kind=kind, name=name, value=value, order=uuid.uuid4().hex)
        events = self._bus.topology.events
        before = (await self._bus.logs.state(events)).last_sequence
        await self._bus.publish(self._bus.topology.control(), order, msg_id=order.order)
        try:
            async with asyncio.timeout(within_s):
                refusal = await self._answer_to(order.order, start=before + 1)
        except TimeoutError as exc:
            raise BusError(
                f"no dataflow of run {self.config.run.name} has carried out {kind} {name} within {within_s:g} s; the "
                "order is stored, and `astraflow status` says who is there"
            ) from exc
        if refusal:
            raise ConfigError(refusal)

    async def _answer_to(self, order: str, *, start: int) -> str:
        """Why the order is refused; "" = it is carried out."""
        async with aclosing(self._bus.logs.read(self._bus.topology.events, start=start)) as events:
            async for entry in events:
                if isinstance(entry.message, Event) and entry.message.fields.get("order") == order:
                    return str(entry.message.fields.get("refusal", ""))
        raise BusError("the log of events ended")
