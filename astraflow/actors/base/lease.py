"""One holder at a time: who may be the run's dataflow, or a policy's trainer.

    waiting ── free · released · holder's process ended · silent for lease_s ──▶ held ──▶ released
                                                                    held ── somebody else took it ──▶ FencedError

The record is a KV value without a TTL, so that its epoch never goes back; every renewal and every takeover is a
compare-and-set. Nobody's wall clock counts. The holder judges by the time at which it *sent* its last good renewal, a
waiter by the time at which it *saw* it, which is later: the holder stops before a waiter starts. Both clocks go on
while a process or a machine sleeps.

The renewal is a task on the actor's own loop: an actor whose loop is blocked can't use its lease and doesn't keep it.
A holder whose lease ran out stops at its next `held()`, and goes on if nobody took it (the server was away); otherwise
it is fenced: whoever is inside `lease()` is cancelled and FencedError is raised. What a frozen holder sent just before
is fenced by expected sequences (owned_log.py), sealed keys (owned_key.py) and epochs in names (checkpoints.py).
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec

from astraflow import clock
from astraflow.actors.base.context import ActorContext
from astraflow.actors.base.process_identity import has_ended, own_process, until_ended
from astraflow.bus import KvUpdate, wiring
from astraflow.clock import boottime
from astraflow.concurrency import Background, first_of, wait_at_most
from astraflow.errors import FencedError, UnreadableValueError
from astraflow.messages import Lease, MemberState

_RENEWALS = 3  # per lease length
_LONGEST_TERMS = 10  # of ours, that another holder's term may be: [bus] may have been changed meanwhile
_MOST_EPOCHS = 1 << 40


def _lease_key(name: str) -> str:
    """KV key of a lease."""
    return wiring.LEASE.key(name)


class HeldLease:
    """A lease that this process took. `epoch` is higher than that of any holder before."""

    def __init__(self, ctx: ActorContext, name: str, record: Lease, *, revision: int, sent_at: float) -> None:
        self.epoch = record.epoch
        self._ctx = ctx
        self._key = _lease_key(name)
        self._record = record
        self._revision = revision
        self._until = sent_at + record.lease_s
        self._renewed = asyncio.Event()
        self._hurry = asyncio.Event()

    async def held(self) -> None:
        """Return while the lease is surely ours, else wait until it is again. Call it before every piece of work."""
        while boottime() >= self._until:
            self._renewed.clear()
            self._hurry.set()
            await self._renewed.wait()

    async def renew(self) -> None:
        """Keep it, for ever. Raises FencedError if somebody else has it."""
        while True:
            sent_at = boottime()
            try:
                self._revision = await self._ctx.bus.kv.put(
                    self._key, self._record, expected_revision=self._revision, deadline_s=None
                )
            except FencedError as exc:
                try:
                    lost = await self._lost()
                except UnreadableValueError as damaged:  # nobody took it: what is there is no lease
                    self._revision = damaged.revision
                    continue
                if lost:
                    raise FencedError(lost) from exc
                self._revision = 0
                continue
            self._until = sent_at + self._record.lease_s
            self._renewed.set()
            await wait_at_most(self._hurry, self._record.lease_s / _RENEWALS)
            self._hurry.clear()

    async def _lost(self) -> str:
        """To whom; "" if the key was deleted, and so nobody has taken it."""
        entry = await self._ctx.bus.kv.get(self._key)
        if entry is None:
            return ""
        other = entry.message
        assert isinstance(other, Lease), other
        return (
            f"{self._key} (epoch {self.epoch}) was lost to {other.actor} (epoch {other.epoch}): "
            f"{self._ctx.name} was silent for longer than "
            f"bus.lease_s = {self._record.lease_s:g}; it must exit, a restart waits as a standby"
        )

    async def release(self) -> None:
        """Give it to whoever waits, unless somebody has it already. `renew` must have ended.

        A renewal that was cut off may still be stored after it was read here: then it is read again.
        """
        released = msgspec.structs.replace(self._record, holder="")
        while True:
            entry = await self._ctx.bus.kv.get(self._key)
            if entry is None or not isinstance(entry.message, Lease) or entry.message.holder != self._record.holder:
                return
            with suppress(FencedError):
                await self._ctx.bus.kv.put(self._key, released, expected_revision=entry.revision)
                return


@asynccontextmanager
async def lease(ctx: ActorContext, name: str, *, above: int = 0) -> AsyncIterator[HeldLease | None]:
    """Wait for the lease and keep it while inside; None if the actor was stopped first.

    `above`: an epoch that is known to have been, from elsewhere: the key may have been lost, and epochs never go back.

    Raises: FencedError if it was lost. However the block ends, the lease is released, so that a successor starts at
    once; it need not be told when this process is killed on the same machine.
    """
    held = await ctx.unless_stopped(_acquire(ctx, name, above=above))
    if held is None:
        yield None
        return
    async with Background() as background:
        renewing = background.start(held.renew())
        try:
            yield held
        finally:
            renewing.cancel()
            await asyncio.wait((renewing,))
            with suppress(TimeoutError):
                async with asyncio.timeout(ctx.config.bus.lease_s):  # then it has run out anyway
                    await held.release()


async def _acquire(ctx: ActorContext, name: str, *, above: int) -> HeldLease:
    waiter = _Waiter(ctx, name, above=above)
    async with Background() as background:
        background.start(waiter.watch())
        return await waiter.take_when_free()


class _Waiter:
    """Watches a lease until it can be taken."""

    def __init__(self, ctx: ActorContext, name: str, *, above: int) -> None:
        self._ctx = ctx
        self._name = name
        self._above = above
        self._known = False
        self._news = asyncio.Event()
        self._record: Lease | None = None
        self._revision = 0
        self._seen_at = 0.0
        self._reconnects = 0

    async def watch(self) -> None:
        """Note every renewal and when it was seen."""
        async for update in self._ctx.bus.kv.watch(_lease_key(self._name)):
            self._note(update)

    def _note(self, update: KvUpdate) -> None:
        if not update.key:
            self._known = True
        elif update.revision != self._revision:  # a reconnect tells old values again
            if update.unreadable:  # its holder may be alive, and writes it anew then
                self._record = self._record or self._unknown()
            else:
                self._record = self._possible(update.message) if isinstance(update.message, Lease) else None
            self._revision = update.revision
            self._see()
        self._news.set()

    def _unknown(self) -> Lease:
        """For a lease that can't be read. Its epoch is over all that have been counted from 1."""
        lease_s = self._ctx.config.bus.lease_s
        return Lease(holder="?", epoch=int(clock.wall()), actor="somebody whose record can't be read", lease_s=lease_s)

    def _possible(self, record: Lease) -> Lease:
        """Without a term or an epoch that no holder of this run can have: such a lease would never end."""
        longest = _LONGEST_TERMS * self._ctx.config.bus.lease_s
        if not 0 < record.lease_s <= longest:  # also NaN
            record = msgspec.structs.replace(record, lease_s=self._ctx.config.bus.lease_s)
        if not 0 <= record.epoch < _MOST_EPOCHS:
            record = msgspec.structs.replace(record, epoch=int(clock.wall()))
        return record

    def _see(self) -> None:
        self._seen_at, self._reconnects = boottime(), self._ctx.bus.link.reconnects

    async def take_when_free(self) -> HeldLease:
        """Wait, then take it."""
        while True:
            self._news.clear()
            why = self._why_free() if self._known else ""
            if why:
                held = await self._take(why)
                if held is not None:
                    return held
                await self._news.wait()
            else:
                self._say()
                await self._change()

    def _why_free(self) -> str:
        """Why the lease may be taken; "" if it may not."""
        record = self._record
        if record is None or not record.holder:
            return "it was free"
        if has_ended(record.process):
            return "its process has ended"
        # Looked at when the time is over, or at a renewal, which begins it anew: nothing wakes the waiter in between.
        bus = self._ctx.bus
        if not bus.link.up.is_set() or bus.link.reconnects != self._reconnects:
            self._see()  # nobody could renew meanwhile: the time starts again
        return "it was silent" if boottime() - self._seen_at >= record.lease_s else ""

    async def _change(self) -> None:
        """Wait for a renewal, the end of the holder's process, or the time at which it must have renewed."""
        record = self._record
        if record is None:
            await self._news.wait()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self._seen_at + record.lease_s - boottime())):
                await first_of(self._news.wait(), until_ended(record.process))

    async def _take(self, why: str) -> HeldLease | None:
        """None if somebody else was faster."""
        ctx, old = self._ctx, self._record
        epoch = max(old.epoch if old is not None else 0, self._above) + 1
        record = Lease(
            holder=ctx.incarnation,
            epoch=epoch,
            actor=ctx.name,
            process=own_process(),
            lease_s=ctx.config.bus.lease_s,
        )
        sent_at, expected = boottime(), self._revision if old is not None else 0
        try:
            revision = await ctx.bus.kv.put(_lease_key(self._name), record, expected_revision=expected, deadline_s=None)
        except FencedError:
            return None
        ctx.waits_for("")
        if old is not None and old.holder:
            text = f"{ctx.name} takes over {self._name} from {old.actor}: {why} (epoch {epoch})"
            await ctx.bus.event("warning", "lease-taken-over", text, epoch=epoch)
        ctx.set_state(MemberState.CATCHING_UP)
        return HeldLease(ctx, self._name, record, revision=revision, sent_at=sent_at)

    def _say(self) -> None:
        if self._record is not None:
            if self._ctx.state != MemberState.STANDBY:
                self._ctx.set_state(MemberState.STANDBY)
            self._ctx.waits_for(f"the lease (standby: {self._record.actor} leads)")
