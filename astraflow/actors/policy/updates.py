"""How a replica's engine gets from one version to a newer one, and what is told about it.

Everything but the engine's own copy happens beside decoding. It doesn't choose when (`served.py`).
Invariant: the engine serves one whole version; one that can't be used is refused, and the old one goes on serving. A
full that can't be used is asked for again through the member record, which the trainer reads.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from astraflow import clock
from astraflow.actors.base.context import ActorContext
from astraflow.engines.base import PolicyEngine, Verifiable
from astraflow.errors import WeightsError
from astraflow.messages import Head, Metrics
from astraflow.messages.metric_names import (
    POLICY_WANTS_FULL,
    WEIGHTS,
    WEIGHTS_APPLY_S,
    WEIGHTS_FETCHED_BYTES,
    WEIGHTS_LAG_S,
    WEIGHTS_LAG_VERSIONS,
    WEIGHTS_PAUSE_S,
    WEIGHTS_PREPARE_S,
    WEIGHTS_TRANSFER_S,
    WEIGHTS_VERIFY_S,
)
from astraflow.weights.transfer.follower import Advance, WeightFollower


@dataclass(frozen=True, kw_only=True)
class _Swapped:
    """A version that is in place."""

    advance: Advance
    prepare_s: float
    pause_s: float


class Updates:
    """Moves one engine along its policy's heads. Args: between: inside it the engine may change its weights."""

    def __init__(
        self,
        ctx: ActorContext,
        engine: PolicyEngine,
        weights: WeightFollower,
        between: Callable[[], AbstractAsyncContextManager[None]],
    ) -> None:
        self._ctx = ctx
        self._engine = engine
        self._weights = weights
        self._between = between
        self._swaps = 0

    async def to(self, head: Head, *, serving: int, heard_at: float) -> Head | None:
        """The head that the engine serves now: `head` or a newer one; None if it was refused twice.

        `heard_at`: monotonic, when the head was heard of and its `ready_s` was right.
        """
        started = clock.monotonic()
        swapped = await self._swap(head)
        if swapped is None:
            return None
        advance = swapped.advance
        values = {
            WEIGHTS_APPLY_S: clock.monotonic() - started,
            WEIGHTS_TRANSFER_S: advance.transfer_s,
            WEIGHTS_VERIFY_S: advance.verify_s,
            WEIGHTS_PREPARE_S: swapped.prepare_s,
            WEIGHTS_PAUSE_S: swapped.pause_s,
            WEIGHTS_FETCHED_BYTES: float(advance.fetched_bytes),
            WEIGHTS_LAG_VERSIONS: float(advance.head.version - serving),
        }
        if advance.head == head:  # of a newer one, nobody told when
            values[WEIGHTS_LAG_S] = head.ready_s + clock.monotonic() - heard_at
        await self._ctx.bus.metrics(
            Metrics(
                kind=WEIGHTS,
                at=clock.wall(),
                values=values,
                policy=self._ctx.policy,
                step=advance.head.step,
                version=advance.head.version,
                labels={"actor": self._ctx.name},
            )
        )
        return advance.head

    async def look(self, head: Head) -> None:
        """Every so many swaps, compare what the engine serves with the shadow, which has the manifest's digests.

        Call it after each `to`, when it is known that `head` is served.
        """
        every = self._ctx.policy_section.engine.sglang.verify_every
        self._swaps += 1
        if not every or self._swaps % every or not isinstance(self._engine, Verifiable):
            return
        shadow = self._weights.shadow
        assert shadow is not None
        try:
            async with self._between():
                wrong = await self._engine.verify(shadow.tensors)
        except WeightsError as exc:  # the engine serves on: it wasn't touched
            wrong = f"it could not be looked at: {exc}"
        if wrong:
            self._ctx.last_error = f"version {head.version} of {head.policy}: {wrong}"
            await self._ctx.bus.event("error", "weights-differ", self._ctx.last_error, version=head.version)

    async def _swap(self, head: Head) -> _Swapped | None:
        """The second time it is read from a full on, without what is in memory: either may be what is damaged."""
        nexts = ("it is read again, from a full version on", f"the old version serves; {next_full(head)}")
        for afresh, next_step in zip((False, True), nexts, strict=True):
            try:
                advance = await self._weights.advance(head, afresh=afresh)
                started = clock.monotonic()
                shadow = self._weights.shadow
                assert shadow is not None
                changes = await asyncio.to_thread(self._weights.behind.changes, shadow, self._engine.takes_elements)
                async with self._between():
                    pause_s = await self._engine.swap(advance.head.version, changes)
            except WeightsError as exc:
                await refused(self._ctx, head, f"{exc}; {next_step}")
            else:
                self._weights.behind.clear()
                self._ctx.gauges.pop(POLICY_WANTS_FULL, None)
                return _Swapped(advance=advance, prepare_s=clock.monotonic() - started - pause_s, pause_s=pause_s)
        self._ctx.gauge(POLICY_WANTS_FULL, head.full_manifest_sequence)
        return None


def next_full(head: Head) -> str:
    """Where another full comes from, for people."""
    if not head.finished:
        return "another full is asked for"
    return (
        f"nobody trains {head.policy} any more: start its trainer again, which publishes it anew "
        f"(`astraflow node --role trainer:{head.policy}`, or stop and continue the run)"
    )


async def refused(ctx: ActorContext, head: Head, why: str) -> None:
    """Tell that a version can't be used, and what comes next."""
    ctx.last_error = why
    await ctx.bus.event("warning", "version-refused", f"version {head.version} of {head.policy}: {why}")
