"""What an actor may rely on: the bus as protocols, which the one on NATS and the one in memory both satisfy.

It holds no code. A contract is written here, once: the classes that satisfy it say only what is their own. Invariant:
everything an actor, an environment's player or a view uses of the bus is here, so that either bus can be handed to it.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol

from astraflow.bus.entries import Cursor, DeadLetter, KvEntry, KvUpdate, LogEntry, LogState, PublishAck
from astraflow.bus.topology import Topology
from astraflow.messages import Decoded, Envelope, Message, Metrics, PartRef


class Kv(Protocol):
    """The run's key-value bucket: compare-and-set, time to live, watch.

    Keys are dotted tokens (`member.rollout-a-0`); values are messages. A write with an expected revision happens at
    most once and never over somebody else's; a key that expired or was deleted counts as absent.
    """

    async def get(self, key: str) -> KvEntry | None:
        """None if the key is absent, deleted or expired. Raises UnreadableValueError if its value is malformed."""

    async def put(
        self,
        key: str,
        message: Message,
        *,
        expected_revision: int | None = None,
        ttl_s: int | None = None,
        deadline_s: float | None = 60.0,
    ) -> int:
        """The new revision. `expected_revision` 0 = the key must be absent; None = whatever is there.

        Raises: FencedError on a conflict, BusError if it can't be stored within `deadline_s` (None = no deadline).
        """

    async def delete(self, key: str) -> None:
        """Watchers hear of it. Nothing happens if the key is absent."""

    async def entries(self, prefix: str) -> dict[str, KvEntry]:
        """The keys below `prefix` (see `watch`), as they are now. Malformed values are skipped and counted."""

    def watch(self, prefix: str) -> AsyncGenerator[KvUpdate, None]:
        """Keys below `prefix`: values now, then an update with key "", then changes, for ever.

        "member." is every key that starts so, "run" is that key, "" is everything.
        After a reconnect the current values are told again, and what vanished meanwhile as deleted; none is missed.
        """


class Logs(Protocol):
    """Streams that are read by cursor, appended in order and purged from below.

    A cursor that the log doesn't bear out raises CursorError, never a skip.
    """

    def read(
        self,
        stream: str,
        *,
        subject: str | None = None,
        cursor: Cursor | None = None,
        start: int | Literal["first", "new"] = "first",
        follow: bool = True,
    ) -> AsyncGenerator[LogEntry, None]:
        """A log's messages in order, each once, across reconnects.

        Args: `subject` narrows (wildcards allowed). With a `cursor` it continues behind it, verified: CursorError.
        `start` is a sequence, "first", or "new" (what is published after the first step of the iteration). `follow`
        False ends at the last message that the log had at that step. Malformed messages become dead letters.
        """

    async def entry(self, stream: str, sequence: int) -> LogEntry | None:
        """The message at `sequence`; None if there is none. Raises MessageError if it is malformed."""

    async def next(self, stream: str, subject: str, *, start: int) -> LogEntry | None:
        """The first message on `subject` (wildcards allowed) with a sequence of at least `start`; None if there is
        none. Raises MessageError if it is malformed."""

    async def last(self, stream: str, subject: str) -> LogEntry | None:
        """The newest message on `subject`; None if there is none. Raises MessageError if it is malformed."""

    async def last_sequence(self, stream: str, subject: str) -> int:
        """Of the newest message on `subject`, readable or not; 0 if there is none."""

    async def reached(self, stream: str, sequence: int) -> None:
        """Returns when the log has a message at or behind `sequence`; a mirror may be behind what is known of it."""

    async def state(self, stream: str) -> LogState:
        """Bounds and incarnation of a stream. Raises BusError if there is none."""

    async def purge(self, stream: str, *, below_sequence: int, subject: str | None = None) -> int:
        """Delete what is below `below_sequence` (on `subject`, which may have wildcards); how many messages went.

        The message at `below_sequence` stays whole, and nothing is below 1. Purge below a cursor's own sequence, not
        one more: its message is what the cursor is verified by.
        """


class Parts(Protocol):
    """Byte strings as parts on a stream, each found by its digest."""

    async def put(
        self,
        stream: str,
        subject: str,
        data: bytes | memoryview,
        *,
        msg_prefix: str,
        deadline_s: float | None = None,
    ) -> tuple[PartRef, ...]:
        """Store `data` as parts under `subject`.<digest>; returns when all is stored. Equal parts are stored once.

        The ids are new in every call: a copy that was stored before may have been purged since.
        Raises: BusError if a part isn't stored within `deadline_s` of its turn (None = try for ever), or can't be.
        """

    async def get(self, stream: str, subject: str, parts: Sequence[PartRef]) -> bytearray:
        """The bytes of `parts`, concatenated and verified. Raises WeightsError naming a missing or damaged part."""


class Delivery(Protocol):
    """One message of a work queue to work on.

    Its answers never raise BusError: when they can't be sent within the ack wait, the message is delivered again.
    """

    @property
    def message(self) -> Any: ...

    @property
    def envelope(self) -> Envelope: ...

    @property
    def attempts(self) -> int:
        """1 on the first delivery."""

    async def ack(self) -> None:
        """The work is done and its result is stored; the message goes."""

    async def nak(self, delay_s: float = 0.0) -> None:
        """Hand it back; it is redelivered after `delay_s`."""

    async def reject(self, reason: str) -> None:
        """It can't be worked on, by anybody: it goes to the dead letters."""

    async def in_progress(self) -> None:
        """Start the ack wait anew."""

    def keep_alive(self) -> AbstractAsyncContextManager[None]:
        """While the block runs and the queue is open, the ack wait starts anew at least at every third of it."""


class WorkQueue(Protocol):
    """A queue's shared consumer; each message goes to one of those who fetch.

    What a `fetch` that ends in any way had got meanwhile is handed back at once. What can't be decoded or is of another
    type is dead-lettered and never returned. One `fetch` runs at a time.
    """

    @property
    def stream(self) -> str: ...

    @property
    def consumer(self) -> str: ...

    async def fetch(self, limit: int, *, wait: bool = True) -> list[Delivery]:
        """Up to `limit` deliveries as soon as there is one; `wait=False` returns what is there now, maybe nothing."""


class Queues(Protocol):
    """The run's work queues."""

    def open(self, stream: str, consumer: str) -> AbstractAsyncContextManager[WorkQueue]:
        """A work queue's shared consumer; when the block ends what it holds unasked has been handed back."""

    async def depths(self) -> dict[str, int]:
        """Messages that wait in each queue, undelivered or unacked.

        Keys: `task.<env>`, `task.<env>.eval`, `gen.<policy>`.
        """

    async def undelivered(self) -> dict[str, int]:
        """Like `depths`, but only what nobody has taken yet."""


class CoreFeed(Protocol):
    """What comes in on a subject that isn't stored; an async iterator without an end, across reconnects."""

    def __aiter__(self) -> AsyncIterator[Decoded]: ...

    async def __anext__(self) -> Decoded: ...


class Core(Protocol):
    """Messages that aren't stored: at most once, for token chunks and cancels. What is dropped is counted."""

    async def publish(self, subject: str, message: Message) -> None:
        """Send without storing, at most once; dropped and counted when there is no connection."""

    def subscribe(self, subject: str, *, max_pending: int = 65536) -> AbstractAsyncContextManager[CoreFeed]:
        """What `publish` sends to `subject` (wildcards allowed), from the beginning of the block on.

        Over `max_pending` unread messages new ones are dropped and counted; so is what can't be decoded.
        """


class DeadLetters(Protocol):
    """Where messages went that couldn't be read."""

    async def read(self) -> list[DeadLetter]:
        """All that are kept, oldest first."""


class _LinkState(Protocol):
    """The connection, as it is now."""

    @property
    def up(self) -> asyncio.Event:
        """Set while there is a connection; to wait on, not to change."""

    @property
    def reconnects(self) -> int:
        """How often the connection was made anew."""

    @property
    def domain(self) -> str:
        """JetStream's domain in the server, a region's leaf has its name; "" = it has none, or isn't connected."""

    async def reconnected(self, since: int) -> int:
        """Waits until `reconnects` is over `since`; returns it. Streams that live in memory may have been lost."""


class _WaitingPublishes(Protocol):
    """Which publishes of this process wait."""

    def sentence(self) -> tuple[str, float]:
        """What can't be stored and why, and for how many seconds; "" if nothing waits. From any thread."""


class Bus(Protocol):
    """One process's place on the run's bus. Every operation waits out a lost connection."""

    @property
    def run(self) -> str:
        """Name of the run."""

    @property
    def producer(self) -> str:
        """Name of this process."""

    @property
    def topology(self) -> Topology: ...

    @property
    def counters(self) -> Counter[str]:
        """What was skipped, dropped, retried or doubled, by reason."""

    @property
    def kv(self) -> Kv: ...

    @property
    def logs(self) -> Logs: ...

    @property
    def parts(self) -> Parts: ...

    @property
    def queues(self) -> Queues: ...

    @property
    def core(self) -> Core: ...

    @property
    def dead_letters(self) -> DeadLetters: ...

    @property
    def link(self) -> _LinkState: ...

    @property
    def waits(self) -> _WaitingPublishes: ...

    async def ensure(self) -> None:
        """Create the run's streams and consumers; from now on also after every reconnect. Idempotent.

        Raises BusError for a stream that exists with other settings.
        """

    async def publish(
        self,
        subject: str,
        message: Message,
        *,
        msg_id: str,
        ttl_s: float | None = None,
        expected_last_sequence: int | None = None,
        deadline_s: float | None = 60.0,
    ) -> PublishAck:
        """Store a message, of any size, in the stream that has `subject`.

        Args: `msg_id` must be deterministic; a second publish of it is a success (`duplicate`), for as long as the
        stream remembers ids (10 minutes). `ttl_s` is rounded up to whole seconds. `expected_last_sequence` is the
        sequence of the last message *on this subject* (0 = none). `deadline_s` None = try for ever.

        Raises: FencedError if another id is at the subject's tail instead; BusError if it isn't stored in time or
        can't be; MessageError if it is too big even for parts.
        """

    async def relay(self, subject: str, envelope: Envelope) -> PublishAck:
        """Store a message that was read elsewhere, as its producer made it; tries for ever. Raises BusError."""

    async def event(self, level: str, name: str, text: str, **fields: Any) -> None:
        """Log it and tell everybody. Never raises BusError; what can't be sent in time is counted."""

    async def metrics(self, metrics: Metrics) -> None:
        """Append to the METRICS log. Never raises BusError; what can't be stored in time is counted."""

    async def why_not_stored(self, within_s: float) -> str:
        """Try whether the server stores anything; why it doesn't, or "". Leaves a mark that expires in a second."""
