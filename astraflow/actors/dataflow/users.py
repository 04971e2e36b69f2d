"""What users want of a run: the tasks that they submit and the orders that they give, from their logs into the core.

The driver calls `take_entry` and `answer`; nothing here touches the core from another task. Invariant: the cursors are
behind what the core has taken in, so they may stand in the same snapshot.
"""

import asyncio
from collections.abc import Awaitable, Callable

from astraflow.bus import Bus, Cursor, LogEntry
from astraflow.dataflow.core import DataflowCore
from astraflow.messages import CONTROL_EVENT, Control, Submission


class Users:
    """The SUBMIT and CONTROL logs, as far as dataflow has followed them."""

    def __init__(self, bus: Bus, core: DataflowCore, *, submissions: Cursor | None, controls: Cursor | None) -> None:
        self._bus = bus
        self._core = core
        self.submissions = submissions
        self.controls = controls
        self._answers: list[tuple[str, dict[str, str]]] = []

    async def read(self, hand_over: Callable[[LogEntry], Awaitable[None]]) -> None:
        """Hand over every new submission and order, those of each log in order."""

        async def follow(stream: str, cursor: Cursor | None) -> None:
            async for entry in self._bus.logs.read(stream, cursor=cursor):
                await hand_over(entry)

        topology = self._bus.topology
        async with asyncio.TaskGroup() as group:
            group.create_task(follow(topology.submissions, self.submissions))
            group.create_task(follow(topology.controls, self.controls))

    def take_entry(self, entry: LogEntry) -> None:
        """Hand it to the core; what comes of it is said by `answer`."""
        if isinstance(entry.message, Submission):
            self.submissions = entry.cursor
            verdict = self._core.users.on_submission(entry.message, entry.sequence, entry.cursor.message_id)
            if not verdict.ok:
                self._answers.append((f"submission refused: {verdict.text}", {"refusal": verdict.text}))
        elif isinstance(entry.message, Control):
            order = entry.message
            self.controls = entry.cursor
            verdict = self._core.users.on_control(order, entry.sequence)
            name = f"{order.kind} {order.name}".strip()
            text = f"{name}: done, as a user wants it" if verdict.ok else f"{name} refused: {verdict.text}"
            self._answers.append((text, {"order": order.order, "refusal": verdict.text}))

    def answer(self, publishing: asyncio.TaskGroup) -> None:
        """Tell people, and who waits for an order to be carried out."""
        for text, fields in self._answers:
            level = "warning" if fields["refusal"] else "info"
            publishing.create_task(self._bus.event(level, CONTROL_EVENT, text, **fields))
        self._answers.clear()
