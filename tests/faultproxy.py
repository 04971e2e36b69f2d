"""Message-level faults on the wire: a proxy between real processes and a real nats-server that knows NATS messages.

It loses, doubles and delays whole messages of the kinds that are told (a delayed one is overtaken by those behind it);
everything else of the protocol passes untouched and in order, as TCP has it. Our code is none the wiser. Which messages
are hit is drawn from a seed; `counts` says what was done.
"""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

LINE_BYTES = 1 << 20


class Kind(StrEnum):
    """Messages by what their loss does."""

    PUBLISH = "publish"  # to a stream or a KV key, with an id: sent again with the same id
    PUBACK = "puback"  # the server's answer to one: sent again, and a duplicate then
    DELIVERY = "delivery"  # of a work queue: redelivered after the ack wait
    ACK = "ack"  # of one, of any sort
    CORE = "core"  # chunks of generation replies, and cancels: not stored anywhere
    LOG = "log"  # a reader's request for what a log or the KV bucket holds, and each message of the answer
    NEWS = "news"  # that there is more for a reader
    PULL = "pull"  # a request for deliveries
    API = "api"  # other JetStream requests and their answers
    OTHER = "other"  # pings, statuses, subscriptions: never touched


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Shares of the messages of a kind that suffer a fault; the rest passes."""

    drop: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0
    delay_s: float = 0.2  # at most


def every(rates: Rates, *kinds: Kind) -> dict[Kind, Rates]:
    """The same rates for some kinds; for all that may be touched if none is named."""
    return dict.fromkeys(kinds or [kind for kind in Kind if kind is not Kind.OTHER], rates)


@dataclass
class _Frame:
    """One protocol message: its bytes, and what it is about if it is a PUB or MSG of some sort."""

    raw: bytes
    subject: str = ""
    reply: str = ""
    headers: bytes = b""


@dataclass
class FaultProxy:
    """Made by `proxied`. `rates` may be changed at any time; an empty mapping lets everything pass."""

    upstream: int  # port of the server on this machine
    seed: int
    rates: Mapping[Kind, Rates] = field(default_factory=dict)
    port: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._writers: set[asyncio.StreamWriter] = set()
        self.reading = asyncio.Event()  # cleared: nothing of what the server sends is read
        self.reading.set()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Every connection ends at once, with what is under way."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client's connection, to its end."""
        try:
            source, sink = await asyncio.open_connection("127.0.0.1", self.upstream, limit=LINE_BYTES)
        except OSError:
            writer.transport.abort()
            return
        answers: dict[str, Kind] = {}  # what comes on the reply subject of a request
        self._writers |= {writer, sink}
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(reader, sink, answers, to_server=True))
                group.create_task(self._pass_on(source, writer, answers, to_server=False))
        except* (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # one side has gone: so does the other
        finally:
            for each in (writer, sink):
                self._writers.discard(each)
                each.transport.abort()

    async def _pass_on(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, answers: dict[str, Kind], *, to_server: bool
    ) -> None:
        while True:
            if not to_server:
                await self.reading.wait()
            frame = await _read(source)
            kind = _sent(frame, answers) if to_server else _received(frame, answers)
            self._deal(frame, kind, sink)
            await sink.drain()

    def _deal(self, frame: _Frame, kind: Kind, writer: asyncio.StreamWriter) -> None:
        rates = self.rates.get(kind, Rates())
        dice = self._random.random()
        if dice < rates.drop:
            self.counts[f"{kind} dropped"] += 1
        elif dice < rates.drop + rates.duplicate:
            self.counts[f"{kind} doubled"] += 1
            writer.write(frame.raw)
            self._later(frame, rates, writer)
        elif dice < rates.drop + rates.duplicate + rates.delay:
            self.counts[f"{kind} delayed"] += 1
            self._later(frame, rates, writer)
        else:
            writer.write(frame.raw)

    def _later(self, frame: _Frame, rates: Rates, writer: asyncio.StreamWriter) -> None:
        def write() -> None:
            if not writer.is_closing():
                writer.write(frame.raw)

        asyncio.get_running_loop().call_later(self._random.uniform(0, rates.delay_s), write)


def _sent(frame: _Frame, answers: dict[str, Kind]) -> Kind:
    """What a client sends; notes what its answer will be."""
    if frame.subject.startswith("$JS.ACK."):
        return Kind.ACK
    if frame.subject.startswith("$JS.API.CONSUMER.MSG.NEXT."):
        return Kind.PULL
    if frame.subject.startswith("$JS.API.DIRECT.GET."):
        answers[frame.reply] = Kind.LOG
        return Kind.LOG
    if frame.subject.startswith("$JS.API."):
        answers[frame.reply] = Kind.API
        return Kind.API
    if b"Nats-Msg-Id:" in frame.headers:
        answers[frame.reply] = Kind.PUBACK
        return Kind.PUBLISH
    return Kind.CORE if frame.subject.startswith("af.") else Kind.OTHER


def _received(frame: _Frame, answers: Mapping[str, Kind]) -> Kind:
    """What the server sends. Chunks were touched on their way to it."""
    if frame.reply.startswith("$JS.ACK."):
        return Kind.DELIVERY
    if ".news." in frame.subject:
        return Kind.NEWS
    return answers.get(frame.subject, Kind.OTHER)


async def _read(reader: asyncio.StreamReader) -> _Frame:
    """The next message of either side. Raises IncompleteReadError at the end."""
    line = await reader.readuntil(b"\r\n")
    verb, *words = line.split()
    if verb not in (b"PUB", b"HPUB", b"MSG", b"HMSG"):
        return _Frame(line)
    with_headers, incoming = verb[:1] == b"H", verb.endswith(b"MSG")
    size = int(words[-1])
    names = [word.decode() for word in words[: -2 if with_headers else -1]]
    if incoming:
        del names[1]  # the number of the subscription
    body = await reader.readexactly(size + 2)
    headers = body[: int(words[-2])] if with_headers else b""
    return _Frame(line + body, names[0], names[1] if len(names) > 1 else "", headers)


@contextlib.asynccontextmanager
async def proxied(upstream: int, *, seed: int, rates: Mapping[Kind, Rates] | None = None) -> AsyncIterator[FaultProxy]:
    """A proxy for the server on a port of this machine; it listens while inside."""
    proxy = FaultProxy(upstream, seed, rates or {})
    listener = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=LINE_BYTES)
    proxy.port = listener.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        listener.close()
        proxy.cut()
        await listener.wait_closed()
