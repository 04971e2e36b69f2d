"""The policy engine over a SGLang server: a queue in front of it, swaps between its decode steps, and its failures.

Requests wait here until admission lets them to the server, which gets no more than its memory holds. A server that
ended, hangs, or serves weights that it wasn't given here has failed for good: every stream ends with an EngineError,
the replica's process ends, and a new one starts from the weights on the bus.
Invariants: the server is paused while its weights change, and gets no new request meanwhile; cached prefixes of another
version are never used for a new request.
"""

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from astraflow import clock
from astraflow.concurrency import Background
from astraflow.config import EngineSection
from astraflow.engines.base import EngineLoad, EngineRequest, TokenStream
from astraflow.engines.sglang.completion import Account
from astraflow.engines.sglang.desk import Desk
from astraflow.engines.sglang.labels import Labels
from astraflow.engines.sglang.link import ServerLink
from astraflow.engines.shell import EngineShell, EngineState, prepared_beside
from astraflow.engines.streams import EngineStream, RateMeter
from astraflow.errors import AstraflowError, EngineError, WeightsError
from astraflow.messages.metric_names import POLICY_CONTINUED, POLICY_RELABELLED
from astraflow.weights.codec.changes import Change
from astraflow.weights.codec.tensors import HostTensor

STOP_WITHIN_S = 10.0  # of a swap


class SglangEngine(EngineShell):
    """A `PolicyEngine`. Args: files, tensors: of the model, for the server's start; version: what they are called."""

    def __init__(
        self,
        files: Mapping[str, bytes],
        tensors: Mapping[str, HostTensor],
        *,
        section: EngineSection,
        version: int = 0,
    ) -> None:
        super().__init__(files, section, version)
        self._shapes = {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
        self._account = Account(Labels(), RateMeter(), self._facts.eos_token_ids)
        self.link = ServerLink(section, files, tensors, self._account.labels)
        self._desk = Desk(self.link, self._account, self._start)
        self._swapping = asyncio.Lock()
        self._background: Background | None = None  # while it serves
        self._main: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    async def start(self) -> None:
        self._begin()
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        # A task of its own, which owns all others: a group must be left by the task that entered it, and `start` and
        # `stop` may be called from different ones.
        self._main = loop.create_task(self._run(ready))
        await ready

    async def _run(self, ready: "asyncio.Future[None]") -> None:
        try:
            async with Background() as background:
                self._context_length = min(
                    self._context_length, await self.link.start(background, self._version, self._context_length)
                )
                self._account.seeded = self.link.seeded
                self._background = background
                self._state = EngineState.SERVING
                if not ready.done():  # whoever waits may have been cancelled, and stops it next
                    ready.set_result(None)
                given = lambda: self._desk.running  # noqa: E731 - of both
                self._start(self.link.watch(self._expected, given, self._account.rate.per_second))
                self._start(self.link.adapt(given, lambda: self._desk.without_token, self._desk.pump))
                await self._stopping.wait()
        except Exception as exc:  # noqa: BLE001 - whatever ended it is told to whoever has a request here
            error = self._fail(exc)
            if not ready.done():
                ready.set_exception(error)
        finally:
            self._background = None
            if not ready.done():
                ready.set_exception(EngineError("the engine was stopped while it started"))
            await self.link.stop()

    def _start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run it while the engine serves. If it crashes the engine has failed at once; the others need time to end."""
        assert self._background is not None
        return self._background.start(self._or_fail(work))

    async def _or_fail(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as exc:
            self._fail(exc)
            raise

    def _expected(self) -> int | None:
        """The version that the server must name; None while it changes."""
        return None if self._swapping.locked() else self._version

    def _fail(self, exc: Exception) -> AstraflowError:
        error = super()._fail(exc)
        self._desk.end_all(lambda reply: reply.fail(self._error))
        return error

    async def stop(self) -> None:
        was_starting = self._state is EngineState.STARTING
        self._end()
        self._desk.end_all(lambda reply: reply.put((), (), self._version, "abort"))
        if self._main is not None:
            if self._state is EngineState.STOPPED and not was_starting:
                await self._until_whole()
            self._stopping.set()
            if was_starting:  # nothing looks at the event yet
                self._main.cancel()
            await asyncio.wait((self._main,))

    async def _until_whole(self) -> None:
        """Let a swap end, so that a server that others use isn't left paused; it may hang."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_WITHIN_S), self._swapping:
                pass

    def generate_together(self, requests: Sequence[EngineRequest]) -> Sequence[TokenStream]:
        """See `PolicyEngine`. They reach the server one after the other: it alone decides which steps they share."""
        replies = self._replies(requests, self._desk.ids())
        for request, reply in zip(requests, replies, strict=True):
            self._desk.put(request, reply)
        self._desk.pump()
        return [EngineStream(reply, self._drop) for reply in replies]

    def _lacks(self) -> frozenset[str]:
        """It runs without a tokenizer, and so can't tell end tokens; it samples by seeds only where it is told to."""
        return frozenset({"min_tokens"} if self._account.seeded else {"min_tokens", "seed"})

    def _drop(self, request_id: str) -> None:
        if self._state is EngineState.SERVING:  # else all have ended
            self._desk.drop(request_id, self._version)

    def takes_elements(self, name: str) -> bool:
        return self.link.way.takes_elements(name)

    async def swap(self, version: int, changes: Mapping[str, Change]) -> float:
        """See `PolicyEngine`. If the caller is cancelled, the swap may still happen."""
        self._check_serving()
        self._check_changes(changes)
        return await self._in_place(version, changes)

    async def verify(self, tensors: Mapping[str, HostTensor]) -> str:
        """See `Verifiable`: loads them in full, and compares what the server says of its memory before and after."""
        self._check_serving()
        self._check_changes(tensors)
        before = await self.link.checksums()
        version = self._version
        if before is None:
            return ""  # this server can't say
        await self._in_place(version, tensors)
        if await self.link.checksums() == before:
            return ""
        return f"what the server served as version {version} was not that version; it has been loaded in full now"

    def _check_changes(self, changes: Mapping[str, Change]) -> None:
        for name, change in changes.items():
            if name not in self._shapes:
                raise WeightsError(f"tensor {name!r} isn't part of the model")
            dtype, shape = self._shapes[name]
            if (change.dtype, change.shape) != (dtype, shape):
                raise WeightsError(
                    f"tensor {name!r} is {change.dtype}{list(change.shape)}, the model has {dtype}{list(shape)}"
                )

    async def _in_place(self, version: int, changes: Mapping[str, Change]) -> float:
        async with self._swapping:
            try:
                prepared = await prepared_beside(self.link.way.prepare, changes)
            except OSError as exc:
                raise WeightsError(f"version {version} can't be written to {self.link.folder}: {exc}") from exc
            self._check_serving()
            done: asyncio.Future[float] = asyncio.get_running_loop().create_future()
            task = self._start(self._send(version, prepared, done))
            try:
                await asyncio.shield(asyncio.wait((task,)))
            except asyncio.CancelledError:
                await asyncio.wait((task,))
                raise
            if not done.done():
                raise self._unchanged()
            return done.result()

    async def _send(self, version: int, prepared: object, done: "asyncio.Future[float]") -> None:
        """In the engine's own task group: whatever goes wrong here has left the server in between, and ends it."""
        started = clock.monotonic()
        self._desk.closed = True
        await self.link.exchange(prepared, version)
        self._version, self._desk.closed = version, False
        self._account.exchanges += 1
        done.set_result(clock.monotonic() - started)
        self._desk.begin_anew()
        self._desk.pump()

    def load(self) -> EngineLoad:
        return EngineLoad(
            slots=self.link.limit,
            running=self._desk.running,
            queued=self._desk.waiting,
            tokens_per_s=self._account.rate.per_second(),
            version=self._version,
            extra={
                **self.link.gauges(),
                POLICY_CONTINUED: float(self._account.continued),
                POLICY_RELABELLED: float(self._account.relabelled),
            },
            about=self.link.about,
            error=self._error,
        )
