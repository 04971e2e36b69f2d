"""Work queues: pull what there is a free slot for, ack, nak, keep alive.

The contract is `interface.WorkQueue`. It decides nothing about the work. Invariants: at any time the server owes us at
most what the running `fetch` asked for; when `fetch` ends in any way no pull request stays behind, and what had arrived
meanwhile is handed back at once; what can't be decoded or is of another type is dead-lettered and never returned. One
`fetch` runs at a time.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from astraflow.bus.admit import admit
from astraflow.bus.claims import CLAIM, Claims
from astraflow.bus.deadletters import NatsDeadLetters
from astraflow.bus.ensure import SECOND_NS, ensure
from astraflow.bus.feed import FAR_SILENT_S, HEARTBEAT, SILENT_S, AckTokens, Feed
from astraflow.bus.interface import Delivery
from astraflow.bus.link import Link
from astraflow.bus.retry import until_answered
from astraflow.bus.session import Session
from astraflow.bus.topology import Topology
from astraflow.concurrency import Background
from astraflow.errors import ApiError, DeniedError, LinkLostError, MessageError, NoAnswerError
from astraflow.messages import Envelope

if TYPE_CHECKING:
    from nats.aio.msg import Msg

log = logging.getLogger(__name__)

_NOT_FOUND = 404
_EMPTY = {"num_pending": 0, "num_ack_pending": 0}

EXPIRES_S = 5.0  # short: a frozen process's open pull swallows messages
_HEARTBEAT_S = 1.0
RETRY_S = 0.1
_FAR_RETRY_S = 1.0
_MAX_PULL = 4096


@dataclass(slots=True)
class _NatsDelivery:
    """`Delivery` of a pull consumer."""

    message: Any
    envelope: Envelope
    attempts: int
    _queue: "_NatsWorkQueue"
    _reply: str
    _raw: "Msg"
    _headers: dict[str, str] = field(default_factory=dict)

    async def ack(self) -> None:
        if CLAIM in self._headers:
            await self._queue.ack_and_forget(self._reply, self._headers)
        else:
            await self._queue.answer(self._reply, b"+ACK")

    async def nak(self, delay_s: float = 0.0) -> None:
        body = b"-NAK" + (b' {"delay": %d}' % int(delay_s * SECOND_NS) if delay_s > 0 else b"")
        await self._queue.answer(self._reply, body)

    async def reject(self, reason: str) -> None:
        await self._queue.bury(self._raw, reason)

    async def in_progress(self) -> None:
        await self._queue.answer(self._reply, b"+WPI")

    @asynccontextmanager
    async def keep_alive(self) -> AsyncIterator[None]:
        self._queue.kept.add(self._reply)
        try:
            yield
        finally:
            self._queue.kept.discard(self._reply)


class _NatsWorkQueue:
    """`WorkQueue` on a shared durable pull consumer. Made by `NatsQueues.open`."""

    def __init__(
        self,
        stream: str,
        consumer: str,
        *,
        link: Link,
        topology: Topology,
        claims: Claims,
        dead_letters: NatsDeadLetters,
        counters: Counter[str],
        background: Background,
    ) -> None:
        self.stream = stream
        self.consumer = consumer
        self.ack_wait_s = topology.limits.ack_wait_s
        self.kept: set[str] = set()  # deliveries that `renew` keeps alive, by the subject of their acks
        self._link = link
        self._topology = topology
        self._claims = claims
        self._dead_letters = dead_letters
        self._counters = counters
        self._background = background
        self._turn = asyncio.Lock()
        self._feed: Feed | None = None
        self._session: Session | None = None

    async def fetch(self, limit: int, *, wait: bool = True) -> list[Delivery]:
        assert limit > 0, "fetch wants at least one"
        async with self._turn:
            while True:
                messages: list[Msg] = []
                try:
                    await self._pull_some(min(limit, _MAX_PULL), messages, wait=wait)
                    deliveries = await self._decoded(messages)
                except BaseException:
                    self._hand_back(messages)
                    raise
                if deliveries or not wait:
                    return deliveries

    async def answer(self, reply: str, body: bytes) -> None:
        """Send an ack of some kind, over whatever connection there is by then."""
        try:
            async with asyncio.timeout(self.ack_wait_s):
                while True:
                    try:
                        await (await self._link.session()).send(reply, body)
                    except LinkLostError:
                        continue
                    return
        except TimeoutError:
            self._counters["queue.acks_lost"] += 1

    async def renew(self) -> None:
        """For ever, for all deliveries under `keep_alive`: a task for each was a tenth of a rollout's CPU."""
        while True:
            await asyncio.sleep(self.ack_wait_s / 3)
            for reply in list(self.kept):
                if reply in self.kept:  # it may have been finished meanwhile
                    await self.answer(reply, b"+WPI")

    async def ack_and_forget(self, reply: str, headers: dict[str, str]) -> None:
        """Ack a split message, then delete its parts: not before the server has confirmed the ack."""
        try:
            async with asyncio.timeout(self.ack_wait_s):
                while True:
                    try:
                        await (await self._link.session()).request(reply, b"+ACK")
                        await self._claims.forget(headers)
                    except (LinkLostError, NoAnswerError):
                        await asyncio.sleep(RETRY_S)
                        continue
                    return
        except TimeoutError:
            self._counters["queue.acks_lost"] += 1

    async def close(self) -> None:
        """Nothing is owed to us between two fetches; only the subscription goes."""
        if self._feed is not None:
            await self._feed.discard()

    async def _pull_some(self, limit: int, into: "list[Msg]", *, wait: bool) -> None:
        """What is there now; if that is nothing, wait for one, and take what came with it."""
        try:
            await self._pull(limit, into, wait=False)
            if wait and not into:
                await self._pull(1, into, wait=True)
                if into and limit > 1:
                    await self._pull(limit - 1, into, wait=False)
        except LinkLostError:
            self._feed = None  # the next pull waits for the link; what has arrived can be acked over that
        except NoAnswerError as exc:
            log.info("bus.queue_not_ready", extra={"stream": self.stream, "why": str(exc)})
            await self._repair()

    async def _pull(self, limit: int, into: "list[Msg]", *, wait: bool) -> None:
        """One pull request, read to its end: `limit` messages, or its status. What is there from the one before, which
        may have reached the server twice, comes first."""
        feed = await self._open_feed()
        assert self._session is not None
        while limit and (early := feed.pop()) is not None:
            if feed.status_of(early) is None:
                into.append(early)
                limit -= 1
        if not limit:
            return
        request: dict[str, Any] = {"batch": limit}
        if wait:
            request |= {"expires": int(EXPIRES_S * SECOND_NS), "idle_heartbeat": int(_HEARTBEAT_S * SECOND_NS)}
        else:
            request["no_wait"] = True
        await feed.pull(request, alone=True)
        while limit:
            msg = feed.pop()
            if msg is None:
                try:
                    async with asyncio.timeout(FAR_SILENT_S if self._session.far else SILENT_S):
                        msg = await feed.get()
                except TimeoutError:
                    await self._session.flush(SILENT_S)  # raises LinkLostError if the server is gone
                    self._hand_back([])
                    return
            status = feed.status_of(msg)
            if status is None:
                into.append(msg)
                limit -= 1
            elif status in ("404", "408"):
                return
            elif status not in (HEARTBEAT, ""):
                description = (msg.headers or {}).get("Description", "")
                raise NoAnswerError(f"consumer {self.consumer} of {self.stream}: status {status} {description}")

    async def _open_feed(self) -> Feed:
        session = await self._link.session()
        if self._feed is None or self._session is not session:
            subject = f"{session.api_prefix}.CONSUMER.MSG.NEXT.{self.stream}.{self.consumer}"
            self._session, self._feed = session, await session.inbox_feed(subject)
        return self._feed

    async def _decoded(self, messages: "list[Msg]") -> list[Delivery]:
        deliveries: list[Delivery] = []
        for msg in messages:
            headers = msg.headers or {}
            tokens = AckTokens.of(msg.reply)
            try:
                data = await self._claims.join(msg.subject, headers, msg.data, sequence=tokens.stream_sequence)
                row = self._topology.row_of_stream[self.stream]
                envelope, message = admit(data, row=row, run=self._topology.run)
            except MessageError as exc:
                await self.bury(msg, str(exc))
                continue
            deliveries.append(_NatsDelivery(message, envelope, tokens.delivered, self, msg.reply, msg, headers))
        return deliveries

    async def bury(self, msg: "Msg", reason: str) -> None:
        """To the dead letters with it, and out of the queue."""
        await self._dead_letters.add(
            stream=self.stream,
            subject=msg.subject,
            sequence=AckTokens.of(msg.reply).stream_sequence,
            data=msg.data,
            reason=reason,
        )
        await self.answer(msg.reply, b"+TERM")

    def _hand_back(self, messages: "list[Msg]") -> None:
        """Withdraw the pull request and nak what has arrived, without making the caller wait."""
        feed, self._feed = self._feed, None

        async def hand_back() -> None:
            if feed is not None:
                await feed.finish()
                while (msg := feed.pop()) is not None:
                    if msg.reply:
                        messages.append(msg)
            for msg in messages:
                await self.answer(msg.reply, b"-NAK")

        self._background.start(hand_back())

    async def _repair(self) -> None:
        """The consumer or stream is gone or not ready: make sure that it is there, then try again."""
        self._hand_back([])
        session = await self._link.session()
        if session.far:  # what is there is others' business; most likely the link is cut
            await asyncio.sleep(_FAR_RETRY_S)
            return
        await asyncio.sleep(RETRY_S)
        try:
            await ensure(session, self._topology)
        except (LinkLostError, NoAnswerError, ApiError, DeniedError) as exc:
            log.warning("bus.queue_not_repaired", extra={"stream": self.stream, "why": str(exc)})


class NatsQueues:
    """`Queues`: the shared consumers of a run's work queues."""

    def __init__(
        self, link: Link, topology: Topology, claims: Claims, dead_letters: NatsDeadLetters, counters: Counter[str]
    ) -> None:
        self._link = link
        self._topology = topology
        self._claims = claims
        self._dead_letters = dead_letters
        self._counters = counters

    @asynccontextmanager
    async def open(self, stream: str, consumer: str) -> AsyncIterator[_NatsWorkQueue]:
        async with Background(grace_s=2.0) as background, Background() as renewing:
            queue = _NatsWorkQueue(
                stream,
                consumer,
                link=self._link,
                topology=self._topology,
                claims=self._claims,
                dead_letters=self._dead_letters,
                counters=self._counters,
                background=background,
            )
            renewing.start(queue.renew())
            try:
                yield queue
            finally:
                await queue.close()

    async def depths(self) -> dict[str, int]:
        return {key: info["num_pending"] + info["num_ack_pending"] async for key, info in self._consumers()}

    async def undelivered(self) -> dict[str, int]:
        return {key: info["num_pending"] async for key, info in self._consumers()}

    async def _consumers(self) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        for row in self._topology.rows:
            for consumer in row.consumers:
                request = f"CONSUMER.INFO.{row.stream}.{consumer.name}"
                try:
                    info = await until_answered(self._link, partial(Session.api, request=request))
                except ApiError as exc:
                    if not (row.memory and exc.code == _NOT_FOUND):
                        raise
                    info = _EMPTY  # it went with its server, and comes back with whoever needs it
                yield consumer.depth_key, info
