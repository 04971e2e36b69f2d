"""The table of the bus: every stream, every family of KV keys, every subject that isn't stored.

Each row says what travels there, who writes, who reads, how long it stays and what bounds it. Everything else derives
from it: the rights of each role's key (`rights.py`), the settings of streams and consumers (`ensure.py`), what may be
found where (`admit.py`), KV keys, and docs/wiring.md. A new KV message is three edits: its type in `messages`, its
family here, its golden bytes (`python -m tests.messages.make_golden`).

Pure. It builds no names (`names.py`) and knows of one region only (`region_rows.py` derives the others). Invariants: no
KV key and no subject is written anywhere else; the bounds that push back are per subject or per policy, so that one
dead env or policy can't fill what others need.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from astraflow.bus.names import ANY, LOOSE, PART, Kind, Names, check_token
from astraflow.messages import (
    Control,
    Decision,
    Drain,
    Episode,
    Event,
    GenCancel,
    GenChunk,
    GenRequest,
    GroupClosed,
    Head,
    Lease,
    Ledger,
    Manifest,
    Member,
    Message,
    Metrics,
    Progress,
    Region,
    RunRecord,
    SampleBatch,
    SnapshotPointer,
    Submission,
    Task,
)
from astraflow.messages.roles import Role

DAY_S = 86_400.0
_MEMBERS_S = 3600.0  # a record that nobody renews goes, whatever time to live its writer gave it
DUPLICATE_WINDOW_S = 600.0  # longer than any retry of a publish
SHORT_WINDOW_S = 0.1  # the least that the server takes: a task that is brought again is meant to be played again
_MARKER_TTL_S = 60.0
CLUSTER_REPLICAS = 3  # the fewest with which the loss of one leaves a majority
EVERYBODY = tuple(Role)
_WATCHERS = (Role.RECORDER, Role.OBSERVER, Role.USER)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of the streams. 0 = unbounded where a bound may be missing."""

    max_tasks: int = 100_000  # messages per subject of TASKS
    max_requests: int = 20_000  # messages per policy in GEN
    max_episodes_bytes: int = 8 << 30
    max_weights_bytes: int = 0  # per policy
    max_blobs_bytes: int = 1 << 30
    max_requests_bytes: int = 512 << 20  # in GEN, which is in memory
    max_members_bytes: int = 16 << 20
    max_member_bytes: int = 64 << 10  # one record
    max_metrics_bytes: int = 256 << 20
    max_events_bytes: int = 64 << 20
    max_dead_letters_bytes: int = 64 << 20
    ack_wait_s: float = 30.0
    answer_s: float = 5.0  # a request to the server without an answer for this long is sent again
    max_message_bytes: int = 512 << 10  # larger messages are split; the server's max_payload may lower it
    replicas: int = 0  # servers of a cluster that keep each stream; 0 = `CLUSTER_REPLICAS`, and 1 on a server alone


@dataclass(frozen=True, kw_only=True)
class Consumer:
    """A shared durable pull consumer of a work queue."""

    name: str
    subject: str
    depth_key: str  # how `Queues.depths` calls it


@dataclass(frozen=True, kw_only=True)
class Mirror:
    """Of a stream in the hub's JetStream domain; it keeps that stream's sequences."""

    stream: str
    subjects: str  # the origin's, as a pattern that ends in `>`
    subjects_here: str  # what they become


@dataclass(frozen=True, kw_only=True)
class Row:
    """One stream. Bounds: 0 = none."""

    kind: Kind
    stream: str
    subjects: tuple[str, ...] = ()  # of whole messages and claims
    parts: tuple[str, ...] = ()  # of the parts of split messages and of byte strings
    messages: tuple[type[Message], ...] = ()  # what is in it; none: bytes
    content: str = ""  # what the bytes are, where there are no messages
    policy: str = ""  # whose it is; "" = the run's
    writers: tuple[Role, ...]
    readers: tuple[Role, ...]  # of a queue: who takes from it; of a log: who reads it in order
    purgers: tuple[Role, ...] = ()  # who deletes what is released
    released: str  # when a message is acked, purged or replaced
    queue: bool = False  # work queue (each message to one consumer, gone when acked), else a log
    memory: bool = False  # on a server that stands alone
    atomic: bool = False  # claims are stored together with their parts
    message_ttl: bool = False
    push_back: bool = True  # full: publishers wait. False: the oldest messages go
    max_per_subject: int = 0
    max_bytes: int = 0
    max_message_bytes: int = 0
    max_whole_bytes: int = 1 << 30  # of a split one
    max_age_s: float = 0.0
    marker_ttl_s: float = 0.0  # how long the server says that a key has expired
    bound_key: str = ""  # the run file's key for the bound that pushes back
    replicas: int = 0  # see Limits
    consumers: tuple[Consumer, ...] = ()
    news: str = ""  # where it tells of each message, as a pattern that ends in `>`; "" = nowhere
    mirror: Mirror | None = None  # a copy of another stream, instead of a stream that is written here
    duplicate_window_s: float = DUPLICATE_WINDOW_S

    @property
    def for_people(self) -> bool:
        """Whether its texts are for people to read, not data of the run."""
        return self.kind in (Kind.KV, Kind.MEMBERS, Kind.ANNOUNCED, Kind.EVENTS, Kind.METRICS, Kind.CONTROL)

    @property
    def relief(self) -> str:
        """Who makes room when it pushes back, and which key allows more; "" if it doesn't push back."""
        if not self.push_back:
            return ""
        more = f", or raise {self.bound_key}" if self.bound_key else ""
        return f"room comes when {self.released} (read by {', '.join(self.readers)}){more}"


@dataclass(frozen=True, kw_only=True)
class KeyFamily:
    """KV keys that hold one type of message. In one stream, the newest value of each key."""

    name: str  # their first token
    tokens: tuple[str, ...] = ()  # what the following ones are
    message: type[Message] | None  # None: markers without a value
    writers: tuple[Role, ...]
    expires: str  # when a key goes

    @property
    def prefix(self) -> str:
        """What the family's keys begin with, for `Kv.watch` and `Kv.entries`; a family of one key has that key."""
        return f"{self.name}." if self.tokens else self.name

    @property
    def loose(self) -> bool:
        """Whether it is in MEMBERS, apart from the keys that hold the run's truth."""
        return self.name in LOOSE

    @property
    def pattern(self) -> str:
        """All keys of the family, with NATS wildcards."""
        return ".".join((self.name, *(ANY for _ in self.tokens)))

    def key(self, *tokens: object) -> str:
        """One key. Raises ConfigError for what can't be a token."""
        assert len(tokens) == len(self.tokens), f"a key of {self.name} has {self.tokens}"
        return ".".join((self.name, *(check_token(str(token), f"token of KV key {self.name}") for token in tokens)))

    def has(self, key: str) -> bool:
        """Whether a key is one of the family's."""
        name, *tokens = key.split(".")
        return name == self.name and len(tokens) == len(self.tokens)

    def tokens_of(self, key: str) -> tuple[str, ...]:
        """What `key` was made of."""
        return tuple(key.split(".")[1:])


RUN = KeyFamily(name="run", message=RunRecord, writers=(Role.ADMIN, Role.DATAFLOW), expires="never")
HEAD = KeyFamily(name="head", tokens=("policy",), message=Head, writers=(Role.TRAINER,), expires="never")
MEMBER = KeyFamily(
    name="member",
    tokens=("actor",),
    message=Member,
    writers=EVERYBODY,
    expires="without a heartbeat for the lease",
)
LEASE = KeyFamily(name="lease", tokens=("name",), message=Lease, writers=(Role.DATAFLOW, Role.TRAINER), expires="never")
PROGRESS = KeyFamily(name="progress", tokens=("policy",), message=Progress, writers=(Role.TRAINER,), expires="never")
LEDGER = KeyFamily(name="ledger", tokens=("policy",), message=Ledger, writers=(Role.DATAFLOW,), expires="never")
SNAPSHOT = KeyFamily(
    name="snapshot", tokens=("of",), message=SnapshotPointer, writers=(Role.DATAFLOW,), expires="never"
)
DRAIN = KeyFamily(name="drain", tokens=("target",), message=Drain, writers=(Role.USER,), expires="after an hour")
CLOSED = KeyFamily(
    name="closed", tokens=("source", "epoch", "index"), message=GroupClosed, writers=(Role.DATAFLOW,),
    expires="when no player can have its tasks any more",
)  # fmt: skip
REGION = KeyFamily(name="region", tokens=("region",), message=Region, writers=(Role.REGION,), expires="never")
PROBE = KeyFamily(name="probe", message=None, writers=EVERYBODY, expires="after a second")
FAMILIES = (RUN, HEAD, MEMBER, LEASE, PROGRESS, LEDGER, SNAPSHOT, DRAIN, CLOSED, REGION, PROBE)


def family_of(key: str) -> KeyFamily | None:
    """The family that a KV key belongs to."""
    return next((family for family in FAMILIES if family.has(key)), None)


@dataclass(frozen=True, kw_only=True)
class CoreSubject:
    """A subject that isn't stored: at most once, to whoever listens."""

    pattern: str
    messages: tuple[type[Message], ...]
    writers: tuple[Role, ...]
    readers: tuple[Role, ...]


def core_subjects(names: Names) -> tuple[CoreSubject, ...]:
    """Every subject of a run that isn't stored."""
    return (
        CoreSubject(
            pattern=names.gen_replica(ANY, ANY), messages=(GenRequest,), writers=(Role.ROLLOUT,), readers=(Role.POLICY,)
        ),
        CoreSubject(
            pattern=names.gen_cancel(ANY), messages=(GenCancel,), writers=(Role.ROLLOUT,), readers=(Role.POLICY,)
        ),
        CoreSubject(pattern=f"{names.replies}>", messages=(GenChunk,), writers=(Role.POLICY,), readers=(Role.ROLLOUT,)),
    )


def home_rows(names: Names, limits: Limits, envs: Sequence[str], policies: Sequence[str]) -> tuple[Row, ...]:
    """Every stream of a run in its home region."""
    replicas = limits.replicas
    tasks = [Consumer(name=names.task_consumer(e), subject=names.task(e), depth_key=f"task.{e}") for e in envs]
    evals = [
        Consumer(name=names.eval_consumer(e), subject=names.eval_task(e), depth_key=f"task.{e}.eval") for e in envs
    ]
    gens = [Consumer(name=names.gen_consumer(p), subject=names.gen(p), depth_key=f"gen.{p}") for p in policies]
    shared = (
        Row(
            kind=Kind.TASKS, stream=names.tasks, subjects=(names.task(ANY), names.eval_task(ANY)), messages=(Task,),
            writers=(Role.DATAFLOW,), readers=(Role.ROLLOUT,), released="its terminal Episode is stored",
            queue=True, max_per_subject=limits.max_tasks, bound_key="bus.max_tasks", consumers=(*tasks, *evals),
            replicas=replicas,
        ),
        Row(
            kind=Kind.GEN, stream=names.gen_requests, subjects=(names.gen(ANY),), messages=(GenRequest,),
            writers=(Role.ROLLOUT,), readers=(Role.POLICY,),
            released="a replica accepts it; the requester supervises", queue=True, memory=True, message_ttl=True,
            max_per_subject=limits.max_requests, max_bytes=limits.max_requests_bytes, max_whole_bytes=64 << 20,
            consumers=tuple(gens),
            replicas=replicas,
        ),
        Row(
            kind=Kind.EPISODES, stream=names.episodes, subjects=(names.episode(ANY),),
            parts=_parts(names.episode(ANY)), messages=(Episode,), writers=(Role.ROLLOUT,),
            readers=(Role.DATAFLOW, *_WATCHERS), purgers=(Role.DATAFLOW,), atomic=True,
            max_bytes=limits.max_episodes_bytes, bound_key="bus.max_episodes_bytes",
            released="below dataflow's snapshot and every episode still referred to", replicas=replicas,
        ),
        Row(
            kind=Kind.DECISIONS, stream=names.decisions, subjects=(names.decision(),), parts=_parts(names.decision()),
            messages=(Decision,), writers=(Role.DATAFLOW,), readers=(Role.DATAFLOW, Role.USER),
            purgers=(Role.DATAFLOW,), released="below dataflow's snapshot", atomic=True, replicas=replicas,
        ),
        Row(
            kind=Kind.SUBMIT, stream=names.submissions, subjects=(names.submission(),),
            parts=_parts(names.submission()), messages=(Submission,), writers=(Role.USER,), readers=(Role.DATAFLOW,),
            purgers=(Role.DATAFLOW,), released="below dataflow's snapshot", atomic=True, replicas=replicas,
        ),
        Row(
            kind=Kind.CONTROL, stream=names.controls, subjects=(names.control(),), parts=_parts(names.control()),
            messages=(Control,), writers=(Role.USER,), readers=(Role.DATAFLOW,), purgers=(Role.DATAFLOW,),
            released="below dataflow's snapshot", atomic=True, replicas=replicas,
        ),
        Row(
            kind=Kind.METRICS, stream=names.metrics, subjects=(names.metric(ANY),), parts=_parts(names.metric(ANY)),
            messages=(Metrics,), writers=EVERYBODY, readers=_WATCHERS, released="by age and size", atomic=True,
            push_back=False, max_bytes=limits.max_metrics_bytes, max_age_s=30 * DAY_S, replicas=replicas,
        ),
        Row(
            kind=Kind.EVENTS, stream=names.events, subjects=(names.event(ANY),), parts=_parts(names.event(ANY)),
            messages=(Event,), writers=EVERYBODY, readers=_WATCHERS, released="by age and size", atomic=True,
            push_back=False, max_bytes=limits.max_events_bytes, max_age_s=30 * DAY_S, replicas=replicas,
        ),
        Row(
            kind=Kind.BLOBS, stream=names.blobs, parts=(f"{names.blob(ANY)}.*",), content="parts of Task, GenRequest",
            writers=(Role.DATAFLOW, Role.ROLLOUT), readers=(), purgers=(Role.ROLLOUT, Role.POLICY), message_ttl=True,
            released="the split message is acked", max_bytes=limits.max_blobs_bytes, replicas=replicas,
        ),
        Row(
            kind=Kind.SNAPSHOTS, stream=names.snapshots, parts=(f"{names.snapshot_part()}.*",),
            content="parts of dataflow's snapshot", writers=(Role.DATAFLOW,), readers=(), purgers=(Role.DATAFLOW,),
            released="a newer snapshot is stored", replicas=replicas,
        ),
        Row(
            kind=Kind.DEAD_LETTERS, stream=names.dead_letters, subjects=(names.dead_letter(ANY),),
            content="what couldn't be read, with the reason in headers", writers=EVERYBODY, readers=(),
            released="by age and size", push_back=False, max_bytes=limits.max_dead_letters_bytes,
            max_age_s=30 * DAY_S, replicas=replicas,
        ),
        Row(
            kind=Kind.KV, stream=names.kv, subjects=(names.kv_pattern(""),),
            messages=_held(loose=False),
            writers=(),  # each family of keys has its own
            readers=EVERYBODY, released="overwritten, deleted or expired", max_per_subject=1, message_ttl=True,
            marker_ttl_s=_MARKER_TTL_S, replicas=replicas,
        ),
        Row(  # without markers, which need a stream that whoever writes one of its keys may roll up, and so wipe
            kind=Kind.MEMBERS, stream=names.members,
            subjects=tuple(names.kv_pattern(family.pattern) for family in FAMILIES if family.loose),
            messages=_held(loose=True), writers=(), readers=EVERYBODY, released="overwritten or expired",
            push_back=False, max_per_subject=1, message_ttl=True, max_bytes=limits.max_members_bytes,
            max_message_bytes=limits.max_member_bytes, max_age_s=_MEMBERS_S, replicas=replicas,
        ),
    )  # fmt: skip
    rows = shared + tuple(row for policy in policies for row in _policy_rows(names, limits, policy))
    return tuple(replace(row, news=names.news(row.kind, ">")) if row.readers and not row.queue else row for row in rows)


def _policy_rows(names: Names, limits: Limits, policy: str) -> tuple[Row, ...]:
    return (
        Row(
            kind=Kind.SAMPLES, stream=names.samples(policy), subjects=(names.sample(policy),),
            parts=_parts(names.sample(policy)), messages=(SampleBatch,), policy=policy, writers=(Role.DATAFLOW,),
            readers=(Role.DATAFLOW, Role.TRAINER), purgers=(Role.DATAFLOW,), atomic=True,
            released="below the trainer's checkpoint and dataflow's snapshot, never the last",
            replicas=limits.replicas,
        ),
        Row(
            kind=Kind.WEIGHTS, stream=names.weights(policy), subjects=(names.manifest(policy),),
            parts=(f"{names.weight_part(policy, ANY)}.*",), messages=(Manifest,), policy=policy,
            writers=(Role.TRAINER,), readers=(Role.POLICY, Role.TRAINER, Role.REGION), purgers=(Role.TRAINER,),
            atomic=True,
            released="below the older of the two newest fulls", max_bytes=limits.max_weights_bytes,
            bound_key="bus.max_weights_bytes", replicas=limits.replicas,
        ),
    )  # fmt: skip


def _held(*, loose: bool) -> tuple[type[Message], ...]:
    held = [family.message for family in FAMILIES if family.loose is loose]
    return tuple(message for message in held if message is not None)


def _parts(subject: str) -> tuple[str, ...]:
    return (f"{subject}.{PART}.*",)
