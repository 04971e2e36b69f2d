"""The supervised connection: one session after the other, for ever.

It knows nothing of streams. Invariant: `session()` returns a live session or waits; every (re)connect is a new client,
a new session and a new epoch, and `on_connect` has run in it before anybody gets it.
"""

import asyncio
import importlib
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from astraflow.bus.incoming import guard
from astraflow.bus.session import Session
from astraflow.bus.trust import BusOptions, credentials, inbox_of, insist_on_tls, trust, why_distrusted
from astraflow.concurrency import first_of
from astraflow.errors import BusError, DeniedError, LinkLostError, NoAnswerError

log = logging.getLogger(__name__)

_PING_EVERY_S = 2.0  # a half-open connection is noticed within four times this
_FAR_ANSWER_WITHIN_S = 60.0  # behind a thin link, where weights may be ahead of the answer
_CLUSTER_ANSWER_FIRST_S = 0.5  # another server may answer while this one waits for a leader
RETRY_FIRST_S, RETRY_MOST_S = 0.05, 1.0


async def open_session(options: BusOptions, *, name: str, epoch: int, others: Sequence[str] = ()) -> Session:
    """A connected session, with one of the servers of `options` in any order, else of the `others`.

    Raises: DeniedError if server and client don't trust each other; LinkLostError if no server can be reached.
    """
    from nats import errors
    from nats.aio.client import Client

    secrets: dict[str, Any] = {
        "token": options.token or None,
        "user": options.user or None,
        "password": options.password or None,
        **credentials(options.credentials_file),
        **trust(options.ca_file),
    }
    servers = [url.strip() for url in options.url.split(",")]
    random.shuffle(servers)  # so that clients spread over a cluster
    servers += others
    client = Client()
    guard(client)
    if options.ca_file or "tls://" in options.url:
        insist_on_tls(client)
    session = Session(client, epoch=epoch, inbox=inbox_of(options, name), domain=options.domain)
    try:
        await client.connect(
            servers=servers,
            dont_randomize=True,
            name=name,
            error_cb=session.on_error,
            closed_cb=session.on_closed,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=2,
            ping_interval=3600,  # the link pings: nats-py can hang while it closes a stale connection
            pending_size=0,  # nothing is buffered for later: it would be sent after its caller gave up
            **secrets,
        )
        await session.start()
    except (errors.Error, OSError, TimeoutError, ValueError) as exc:
        reason = session.last_error or str(exc) or repr(exc)
        session.end(reason)  # there is nothing to flush
        await session.close()
        if distrust := why_distrusted(reason, options, name):
            raise DeniedError(distrust) from exc
        raise LinkLostError(f"{options.url} can't be reached: {reason}") from exc
    except BaseException:
        await session.close()
        raise
    return session


class Link:
    """Keeps one session alive. `run` is its only task."""

    def __init__(self, options: BusOptions, *, name: str, answer_s: float = 5.0) -> None:
        """`answer_s`: requests without an answer fail after this, at the next ping."""
        self.options = options
        self._answer_s = answer_s
        self.name = name
        self.on_connect: Callable[[Session], Awaitable[None]] | None = None
        self.reconnects = 0
        self.up = asyncio.Event()
        self._made_anew = asyncio.Event()
        self._session: Session | None = None
        self._others: tuple[str, ...] = ()
        self._closed = False

    async def start(self) -> None:
        """The first connection. Raises BusError with the next step if there is none within connect_timeout_s."""
        reason: BusError | None = None
        # The import can take seconds on a busy machine, which say nothing about the server.
        await asyncio.to_thread(importlib.import_module, "nats.aio.client")
        try:
            async with asyncio.timeout(self.options.connect_timeout_s):
                while self._session is None:
                    try:
                        self._session = await open_session(self.options, name=self.name, epoch=0)
                    except LinkLostError as exc:
                        reason = exc
                        await asyncio.sleep(RETRY_FIRST_S * 2)
        except TimeoutError:
            raise BusError(
                f"{reason or f'{self.options.url} does not answer'} (tried for {self.options.connect_timeout_s:g} s); "
                f"start a server there or give another url"
            ) from reason
        self._note_others(self._session)
        self.up.set()

    @property
    def domain(self) -> str:
        """JetStream's domain in the server, as it said when it was connected to last; "" = none."""
        return str(self._session.server.get("domain", "")) if self._session is not None else ""

    @property
    def max_payload_bytes(self) -> int:
        """What the server takes in one message, headers included; while the link is down, what the last one took."""
        assert self._session is not None, "start() comes first"
        return self._session.max_payload_bytes

    async def session(self) -> Session:
        """The live session, as soon as there is one. Raises BusError after `close`."""
        while True:
            if self._closed:
                raise BusError("the bus is closed")
            if self._session is not None and not self._session.lost.is_set():
                return self._session
            self.up.clear()
            await self.up.wait()

    async def reconnected(self, since: int) -> int:
        """The number of reconnects, as soon as it is over `since`."""
        while self.reconnects <= since:
            self._made_anew.clear()
            await self._made_anew.wait()
        return self.reconnects

    async def run(self) -> None:
        """Supervise until cancelled: ping, notice the end, open the next session."""
        assert self._session is not None, "start() comes first"
        while True:
            await self._watch(self._session)
            self.up.clear()
            old, epoch = self._session, self._session.epoch + 1
            log.warning("bus.lost", extra={"url": self.options.url, "why": old.last_error})
            async with asyncio.TaskGroup() as group:
                group.create_task(self._bury(old))
                self._session = await self._reopen(epoch)
                self.reconnects += 1
                self.up.set()
                self._made_anew.set()
            log.info("bus.reconnected", extra={"url": self.options.url, "epoch": epoch})

    async def close(self) -> None:
        """Flush and close. Whoever waits for a session is woken with an error."""
        self._closed = True
        if self._session is not None:
            await self._bury(self._session)
        self.up.set()

    async def _watch(self, session: Session) -> None:
        """Returns when the session has ended, by itself or by two pings in a row without any sign of life."""
        unanswered = 0
        while not session.lost.is_set():
            try:
                async with asyncio.timeout(min(_PING_EVERY_S, self._answer_s)):
                    await session.lost.wait()
            except TimeoutError:
                session.expire(self._overdue_s(session))
                received = session.received
                try:
                    await session.flush(_PING_EVERY_S)
                    unanswered = 0
                except LinkLostError as exc:
                    unanswered = unanswered + 1 if session.received == received else 0
                    if unanswered == 2:
                        session.end(str(exc))

    async def _bury(self, session: Session) -> None:
        try:
            async with asyncio.timeout(3.0):
                await session.close()
        except TimeoutError:
            log.warning("bus.close_hangs", extra={"url": self.options.url})

    async def _reopen(self, epoch: int) -> Session:
        wait_s, patience_s = RETRY_FIRST_S, _CLUSTER_ANSWER_FIRST_S
        while True:
            try:
                session = await open_session(self.options, name=self.name, epoch=epoch, others=self._others)
                self._note_others(session)
                try:
                    await self._prepare(session, patience_s)
                except (LinkLostError, NoAnswerError):
                    await self._bury(session)
                    raise
            except BusError as exc:
                task = asyncio.current_task()
                if task is not None and task.cancelling():  # nats-py turns a cancelled connect into an error of its own
                    raise asyncio.CancelledError from exc
                level = logging.WARNING if isinstance(exc, DeniedError) else logging.DEBUG
                log.log(level, "bus.unreachable", extra={"url": self.options.url, "why": str(exc)})
                await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
                wait_s, patience_s = min(2 * wait_s, RETRY_MOST_S), 2 * patience_s
            else:
                return session

    async def _prepare(self, session: Session, patience_s: float) -> None:
        """Run `on_connect`. Nobody watches the session yet, and a server that elects a leader lets questions fall.

        `patience_s`: how long a server of a cluster has for an answer.
        """
        if self.on_connect is None:
            return
        answer_s = min(patience_s, self._answer_s) if session.cluster else self._overdue_s(session)

        async def hurry() -> None:
            while True:
                await asyncio.sleep(answer_s / 4)
                session.expire(answer_s)

        await first_of(self.on_connect(session), hurry())

    def _overdue_s(self, session: Session) -> float:
        return max(self._answer_s, _FAR_ANSWER_WITHIN_S) if session.far else self._answer_s

    def _note_others(self, session: Session) -> None:
        """The cluster's servers, as one of them tells: whoever was given one address finds the rest when it dies."""
        given = self.options.url.replace(" ", "").split(",")
        scheme = f"{given[0].partition('://')[0]}://" if "://" in given[0] else ""
        known = {url.rpartition("://")[2].rpartition("@")[2].rstrip("/") for url in given}
        self._others = tuple(f"{scheme}{at}" for at in session.server.get("connect_urls") or () if at not in known)
