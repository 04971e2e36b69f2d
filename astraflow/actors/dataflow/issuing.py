"""The tasks of a decision: what the environment says of them, on their way to the rollouts, and the end of a group.

It decides nothing and never touches the core from another task than its caller's. Invariant: a task that its
environment can't make is told of by `unmade`; the run goes on.
"""

import asyncio
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from astraflow.bus import Bus, wiring
from astraflow.dataflow.core import DataflowCore
from astraflow.envs.base import Environment
from astraflow.envs.usercode import in_thread
from astraflow.errors import EnvError, HungError, MessageError, RaisedError
from astraflow.messages import Decision, GroupClosed, Task


class Issuing:
    """Makes and publishes tasks. Args: deadline_s: when a task that nobody has played is overdue."""

    def __init__(self, bus: Bus, core: DataflowCore, envs: Mapping[str, Environment], *, deadline_s: float) -> None:
        self._bus = bus
        self._core = core
        self._envs = envs
        self._deadline_s = deadline_s
        self._unmade: list[tuple[Decision, int, str]] = []

    async def publish(self, decision: Decision, publishing: asyncio.TaskGroup) -> None:
        """In a thread, because an environment may generate or read a task for long; the driver waits meanwhile."""
        make = partial(self._core.tasks_of, decision, self._payload)
        try:
            tasks = await in_thread(make, within_s=self._deadline_s)
        except (RaisedError, HungError) as exc:  # user code, as at the rollout boundary: the task fails, not the run
            self._unmade.append((decision, -1, str(exc)))
            return
        for task in tasks:
            publishing.create_task(self._publish_task(task, decision))

    def unmade(self) -> list[tuple[Decision, int, str]]:
        """Tasks that could not be made since the last call: decision, member (-1: all that it names), why."""
        unmade, self._unmade = self._unmade, []
        return unmade

    async def tell_closed(self, decision: Decision) -> None:
        """Rollouts stop playing the group's tasks. The key expires when such a task would be overdue."""
        await self._bus.kv.put(
            wiring.CLOSED.key(decision.source, decision.epoch, decision.index),
            GroupClosed(group_id=decision.group_id, reason=decision.reason),
            ttl_s=max(1, math.ceil(self._deadline_s)),
            deadline_s=None,
        )

    def _payload(self, env: str, index: int) -> dict[str, Any]:
        """What the environment says of a task. Blocking. Raises whatever it raises, EnvError for what isn't a dict."""
        payload = self._envs[env].task(index)
        if not isinstance(payload, dict) or not all(isinstance(key, str) for key in payload):
            raise EnvError(f"env {env}: task({index}) gave {str(payload)[:80]!r}, expected a dict with text keys")
        return payload

    async def _publish_task(self, task: Task, decision: Decision) -> None:
        topology = self._bus.topology
        subject = topology.eval_task(task.env) if task.eval_set else topology.task(task.env)
        try:
            await self._bus.publish(subject, task, msg_id=f"{task.id}@{task.attempt}", deadline_s=None)
        except MessageError as exc:
            self._unmade.append((decision, task.member, f"its payload can't be sent: {exc}"))
