"""Versions on their way out beside training: one at a time, the newest one if that fails, and fulls that are asked for.

How one is made and stored, delta or full, is `WeightPublisher`'s (weights/transfer/publisher.py).
Invariants: training waits for a publish that is under way, never for one that fails: that is told, tried again, and
given up for a newer version. The last version is tried until it is published.

    idle ──start──▶ under way ──published──▶ idle
                     │    ▲
                   fails  again, later        failing ──start of a newer version──▶ under way
                     ▼    │
                    failing
"""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass

from astraflow import clock
from astraflow.actors.base.context import ActorContext
from astraflow.bus import wiring
from astraflow.errors import BusError, FencedError
from astraflow.messages import Member, Probe
from astraflow.messages.metric_names import POLICY_WANTS_FULL
from astraflow.weights.codec.tensors import HostTensor
from astraflow.weights.transfer.publisher import WeightPublisher

_AGAIN_FIRST_S, _AGAIN_MOST_S = 1.0, 30.0  # after a publish that failed
_FULL_AGAIN_S = 30.0  # between two fulls that are asked for, at least


@dataclass(frozen=True, kw_only=True)
class Job:
    """A version to publish."""

    tensors: Mapping[str, HostTensor]
    files: Mapping[str, bytes]
    version: int
    step: int
    batch: int
    finished: bool
    probe: Probe | None  # see `Learner.probe`


class VersionsUnderWay:
    """One trainer's. Its tasks live in the group that `start` and `answer_requests` are given."""

    def __init__(self, ctx: ActorContext, publisher: WeightPublisher) -> None:
        self._ctx = ctx
        self._publisher = publisher
        self._task: asyncio.Task[None] | None = None  # of the newest job
        self._settled = asyncio.Event()  # it is published, or failing
        self._turn = asyncio.Lock()  # the publisher does one thing at a time
        self._full_at = -_FULL_AGAIN_S

    async def start(self, job: Job, group: asyncio.TaskGroup) -> None:
        """Publish in the background, once the publish under way is through or failing."""
        if self._task is not None:
            self._ctx.waits_for("the publish of the version before")
            await self._settled.wait()
            self._ctx.waits_for("")
            if not self._task.done():
                self._task.cancel()
                await asyncio.wait([self._task])
        self._settled.clear()
        self._task = group.create_task(self._publish(job))

    async def done(self) -> None:
        """Wait until the newest version is published."""
        if self._task is not None and not self._task.done():
            self._ctx.waits_for("the newest version to be published")
            await asyncio.wait([self._task])
            self._ctx.waits_for("")

    async def mend(self) -> bool:
        """See `WeightPublisher.mend`."""
        return await self._publisher.mend()

    async def _publish(self, job: Job) -> None:
        wait_s = _AGAIN_FIRST_S
        try:
            while True:
                try:
                    async with self._turn:
                        await self._publisher.publish(
                            job.tensors,
                            job.files,
                            version=job.version,
                            step=job.step,
                            batch=job.batch,
                            finished=job.finished,
                            probe=job.probe,
                        )
                    return
                except FencedError:
                    raise
                except BusError as exc:
                    await self._tell_failure(job, str(exc), first=wait_s == _AGAIN_FIRST_S)
                self._settled.set()
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _AGAIN_MOST_S)
        finally:
            self._settled.set()

    async def _tell_failure(self, job: Job, why: str, *, first: bool) -> None:
        self._ctx.last_error = text = (
            f"version {job.version} of {self._ctx.policy} is not published: {why}; training goes on, replicas stay at "
            f"version {self._publisher.version}, it is tried again"
        )
        if first:
            await self._ctx.bus.event("error", "publish-failed", text, version=job.version)

    async def answer_requests(self) -> None:
        """Publish the newest full anew when a replica says that it can't use it: once, and not too often."""
        async with aclosing(self._ctx.bus.kv.watch(wiring.MEMBER.prefix)) as updates:
            async for update in updates:
                if isinstance(update.message, Member) and self._asks(update.message):
                    await self._full_again(update.message)

    def _asks(self, member: Member) -> bool:
        wanted = member.gauges.get(POLICY_WANTS_FULL, 0)
        return (
            member.policy == self._ctx.policy
            and wanted > 0
            and wanted == self._publisher.full_sequence
            and clock.monotonic() - self._full_at >= _FULL_AGAIN_S
        )

    async def _full_again(self, member: Member) -> None:
        self._full_at = clock.monotonic()
        try:
            async with self._turn:
                await self._publisher.publish_full_again()
        except FencedError:
            raise
        except BusError as exc:
            self._ctx.last_error = f"the full that {member.actor} asks for is not published: {exc}"
            return
        text = f"{member.actor} can't use the newest full of {self._ctx.policy}: version {self._publisher.version} anew"
        await self._ctx.bus.event("warning", "full-again", text, version=self._publisher.version)
