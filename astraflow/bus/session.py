"""One life of one nats-py client: requests, subscriptions, and the moment it ends.

It does not reconnect: a client is never reused after any kind of end, because nats-py loses pull requests, replays
buffered publishes and stays closed after most server errors. `link.py` opens the next one.
Invariant: when `lost` is set, every waiting request and feed of the session has failed with LinkLostError.
"""

import asyncio
import itertools
import json
import logging
import re
import secrets
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from astraflow import clock
from astraflow.bus.feed import Feed
from astraflow.bus.names import KV_SUBJECTS
from astraflow.errors import ApiError, BusError, DeniedError, LinkLostError, NoAnswerError

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

log = logging.getLogger(__name__)

SUBJECT, SEQUENCE = "Nats-Subject", "Nats-Sequence"  # headers of every stored message that is read, of nothing else
_LINGER_S = 0.02
_NOT_READY = frozenset({10008, 10009})  # a cluster that elects a leader
_CLOSE_WITHIN_S = 0.5
_MAX_UNSENT_BYTES = 8 << 20  # above this a sender waits until the socket has taken what is buffered
_DENIED = re.compile(r'permissions violation for (publish|subscription) to "([^"]+)"')


@dataclass(slots=True)
class _Waiting:
    future: "asyncio.Future[Msg]"
    subject: str
    sent_s: float


class Session:
    """Requests and subscriptions over one client. Made by `open_session`."""

    def __init__(self, client: "Client", *, epoch: int, inbox: str, domain: str = "") -> None:
        self.epoch = epoch
        self.far = bool(domain)  # behind a link that may be slow, or cut
        self.api_prefix = f"$JS.{domain}.API" if domain else "$JS.API"
        self.lost = asyncio.Event()
        self.last_error = ""
        self._client = client
        self._inbox = f"{inbox}.{secrets.token_hex(8)}"
        self._feed_numbers = itertools.count()
        self._waiting: dict[str, _Waiting] = {}
        self.feeds: set[Feed] = set()
        self._cut = len(self._inbox) + len(".r.")
        self._echo = f"{self._inbox}.r.echo"

    @property
    def max_payload_bytes(self) -> int:
        """What the server takes in one message, headers included."""
        return self._client.max_payload

    @property
    def server(self) -> dict[str, Any]:
        """What the server said of itself when it was connected to: `version`, `jetstream`, `max_payload`, …"""
        return self._client._server_info

    @property
    def cluster(self) -> str:
        """The name of the cluster that the server belongs to; "" = it stands alone."""
        name = str(self.server.get("cluster", ""))
        return "" if name == self.server.get("server_name") else name  # so a leaf server that stands alone calls itself

    def reach(self, subject: str) -> str:
        """What to publish on for `subject` to be stored: keys don't pass into another domain by themselves."""
        return f"{self.api_prefix}.{subject}" if self.far and subject.startswith(KV_SUBJECTS) else subject

    async def start(self) -> None:
        """Listen for replies. Raises DeniedError if the credentials don't even allow that."""
        subject = f"{self._inbox}.r.*"
        await self._client.subscribe(subject, cb=self._on_reply, pending_bytes_limit=0)
        try:
            await self.flush(5.0)
        except LinkLostError as exc:
            if subject.lower() not in self.last_error:
                raise
            ours = self._inbox.rpartition(".")[0]
            raise DeniedError(
                f"the credentials don't allow subscribing to {subject}; allow {ours}.> for this user"
            ) from exc

    async def send(
        self, subject: str, data: bytes | memoryview = b"", *, reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """Write to the connection; no answer. Waits while more than _MAX_UNSENT_BYTES are unsent."""
        from nats import errors

        try:
            if self._client.pending_data_size > _MAX_UNSENT_BYTES:
                await self._client.flush(10)
            # nats-py only takes len() of the payload and copies it: a view saves the caller a copy
            await self._client.publish(subject, data, reply=reply, headers=headers)  # type: ignore[arg-type]
        except errors.MaxPayloadError as exc:
            limit = self.max_payload_bytes
            raise BusError(f"{len(data)} bytes for {subject} exceed the server's max_payload of {limit} bytes") from exc
        except (errors.Error, OSError) as exc:
            if isinstance(exc, errors.BadSubjectError | errors.BadHeaderError):
                raise BusError(f"{subject!r} isn't a valid subject, or a header isn't valid: {exc!r}") from exc
            self.end(repr(exc))  # now, not when nats-py's callback has its turn: callers try again at once
            raise LinkLostError(f"connection lost while sending to {subject}: {exc!r}") from exc

    async def request(
        self, subject: str, data: bytes | memoryview = b"", *, headers: dict[str, str] | None = None
    ) -> "Msg":
        """Send and wait for one answer. Raises LinkLostError, NoAnswerError, DeniedError."""
        if self.lost.is_set():
            raise LinkLostError("connection lost")
        token = secrets.token_hex(8)  # others of the same key could answer what they can guess
        future: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._waiting[token] = _Waiting(future, subject, clock.monotonic())
        try:
            await self.send(subject, data, reply=f"{self._inbox}.r.{token}", headers=headers)
            msg = await future
        finally:
            self._waiting.pop(token, None)
            if future.done() and not future.cancelled():
                future.exception()  # seen: a send that failed has raised already, and ended the session with it
        if msg.headers and not msg.data and msg.headers.get("Status") == "503" and SEQUENCE not in msg.headers:
            raise NoAnswerError(f"nobody answers {subject}: no such stream or consumer, or JetStream isn't ready")
        return msg

    async def api(self, request: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """A JetStream API request. Raises ApiError besides what `request` raises."""
        data = json.dumps(body).encode() if body is not None else b""
        answer: dict[str, Any] = json.loads((await self.request(f"{self.api_prefix}.{request}", data)).data)
        if "error" in answer:
            error = answer["error"]
            if error.get("err_code", 0) in _NOT_READY:
                raise NoAnswerError(f"nats-server isn't ready for {request}: {error.get('description', '')}")
            raise ApiError(request, error.get("code", 0), error.get("err_code", 0), error.get("description", ""))
        return answer

    async def subscribe(self, subject: str, *, bound: int = 0) -> Feed:
        """A feed of everything on `subject`; `bound` messages are kept at most, 0 = the sender is bounded."""
        feed = Feed(self, subject, bound)
        await self._attach(feed)
        return feed

    async def inbox_feed(self, pulls_by: str) -> Feed:
        """A feed on a new private subject, for the answers to pull requests on `pulls_by`."""
        feed = Feed(self, f"{self._inbox}.f.{next(self._feed_numbers)}.*", 0)
        feed.pulls_by = pulls_by
        await self._attach(feed)
        return feed

    async def _attach(self, feed: Feed) -> None:
        from nats import errors

        self.feeds.add(feed)
        try:
            feed.subscription = await self._client.subscribe(feed.subject, cb=feed.on_message, pending_bytes_limit=0)
        except (errors.Error, OSError) as exc:
            self.feeds.discard(feed)
            self.end(repr(exc))
            raise LinkLostError(f"connection lost while subscribing to {feed.subject}: {exc!r}") from exc

    async def flush(self, timeout_s: float) -> None:
        """Wait until the server has processed all that was sent. Raises LinkLostError.

        By a message to ourselves: nats-py's own flush sends its PING ahead of commands that it still buffers.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self.request(self._echo)
        except DeniedError:
            return  # also an answer, and also in order
        except (TimeoutError, NoAnswerError) as exc:  # it may be our own loop that was late
            raise LinkLostError(f"nats-server doesn't answer within {timeout_s:g} s") from exc

    async def end_feed(self, feed: Feed, *, at_once: bool) -> None:
        """See `FeedSession.end_feed`."""
        self.feeds.discard(feed)
        if feed.subscription is None or self.lost.is_set():
            return
        if at_once:
            await self.quiet(feed.subscription.unsubscribe())
        else:
            with suppress(LinkLostError):
                await self._withdraw(feed.subscription)

    async def _withdraw(self, subscription: "Subscription") -> None:
        """Unsubscribe at the server first, and here only when what was under way has arrived."""
        await self.quiet(self._client._send_unsubscribe(subscription._id))  # the public one drops what is under way
        await self.flush(5.0)
        await asyncio.sleep(_LINGER_S)  # a consumer's delivery may be a moment behind
        await self.quiet(subscription.unsubscribe())

    @property
    def received(self) -> int:
        """Messages that have come in so far: a sign of life."""
        return self._client.stats["in_msgs"]

    async def quiet(self, work: Any) -> None:
        """Await a clean-up of the client; that the connection is gone is no news then."""
        from nats import errors

        try:
            await work
        except (errors.Error, OSError):
            return

    def expire(self, after_s: float) -> None:
        """Fail requests that have waited longer than `after_s`."""
        limit = clock.monotonic() - after_s
        for waiting in list(self._waiting.values()):
            if waiting.sent_s < limit and not waiting.future.done():
                waiting.future.set_exception(
                    NoAnswerError(
                        f"no answer on {waiting.subject} within {after_s:g} s: is nats-server's disk full? see its log"
                    )
                )

    def end(self, why: str) -> None:
        """Fail everything that waits. Idempotent."""
        if self.lost.is_set():
            return
        self.lost.set()
        error = LinkLostError(f"connection to nats-server lost: {why or 'closed'}")
        for waiting in list(self._waiting.values()):
            if not waiting.future.done():
                waiting.future.set_exception(error)
        for feed in list(self.feeds):
            feed.fail(error)

    async def close(self) -> None:
        """Hand what is sent to the server and close; never a drain, which can hang."""
        if not self.lost.is_set():
            with suppress(LinkLostError):
                await self.flush(2.0)
        self.end("closed by us")
        with suppress(TimeoutError):  # a TLS connection whose handshake was cut off waits for its end for ever
            async with asyncio.timeout(_CLOSE_WITHIN_S):
                await self.quiet(self._client.close())

    async def _on_reply(self, msg: "Msg") -> None:
        answered = msg.reply if msg.subject == self._echo else msg.subject
        waiting = self._waiting.get(answered[self._cut :])
        if waiting is not None and not waiting.future.done():
            waiting.future.set_result(msg)

    async def on_closed(self) -> None:
        """nats-py's callback: this client is gone for good."""
        self.end(self.last_error)

    async def on_error(self, exc: Exception) -> None:
        """nats-py's callback. A denied publish is visible only here; its caller must hear of it at once."""
        self.last_error = str(exc) or repr(exc)
        denied = _DENIED.search(self.last_error)
        if denied is None:
            return
        verb, subject = denied.groups()  # nats-py has made it lower case
        log.warning("bus.denied", extra={"verb": verb, "subject": subject})  # acks and core messages have no other sign
        error = DeniedError(f"the credentials don't allow {verb} to {subject}; see deploy/ for the rights of each role")
        if verb == "publish":
            for waiting in list(self._waiting.values()):
                if waiting.subject.lower() == subject and not waiting.future.done():
                    waiting.future.set_exception(error)
        elif subject == f"{self._inbox}.r.*".lower():
            self.end(str(error))  # without replies nothing works
        for feed in list(self.feeds):
            if (feed.subject if verb == "subscription" else feed.pulls_by).lower() == subject:
                feed.fail(error)
