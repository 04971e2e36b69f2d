"""The table of streams: what is in each, who writes and reads it, when a message may go, and its bounds.

Pure. It builds no names (`topology.py`). Invariant: the bounds that push back are per subject or per policy, so that
one dead env or policy can't fill what others need.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from astraflow.bus.topology import Topology

DAY_S = 86_400.0
DUPLICATE_WINDOW_S = 600.0  # longer than any retry of a publish
PROBE_KEY = "probe"  # of the KV bucket: written to see whether the server stores, read by nobody
PART = "part"  # token between a subject and the digest of one of its parts


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of the streams. 0 = unbounded where a bound may be missing."""

    max_tasks: int = 100_000  # messages per subject of TASKS
    max_requests: int = 20_000  # messages per policy in GEN
    max_episodes_bytes: int = 8 << 30
    max_weights_bytes: int = 0  # per policy
    max_blobs_bytes: int = 0
    max_metrics_bytes: int = 256 << 20
    max_events_bytes: int = 64 << 20
    max_dead_letters_bytes: int = 64 << 20
    ack_wait_s: float = 30.0
    answer_s: float = 5.0  # a request to the server without an answer for this long is sent again
    max_message_bytes: int = 512 << 10  # larger messages are split; the server's max_payload may lower it
    replicas: int = 1


class Kind(StrEnum):
    """Streams by purpose; part of their names."""

    TASKS = "TASKS"
    GEN = "GEN"
    EPISODES = "EPISODES"
    DECISIONS = "DECISIONS"
    SUBMIT = "SUBMIT"
    CONTROL = "CONTROL"
    SAMPLES = "SAMPLES"
    WEIGHTS = "WEIGHTS"
    METRICS = "METRICS"
    EVENTS = "EVENTS"
    BLOBS = "BLOBS"
    SNAPSHOTS = "SNAPSHOTS"
    DEAD_LETTERS = "DEAD_LETTERS"
    KV = "KV"
    MEMBERS = "MEMBERS"  # only in a region away from home


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
    """One stream: what is in it, who writes and reads it, when a message may go, and its bounds (0 = none)."""

    kind: Kind
    stream: str
    subjects: tuple[str, ...]  # of whole messages and claims
    parts: tuple[str, ...]  # of the parts of split messages and of byte strings
    message: str  # type of its messages
    producer: str
    reader: str
    released: str  # when a message is acked or purged
    queue: bool = False  # work queue (each message to one consumer, gone when acked), else a log
    memory: bool = False
    atomic: bool = False  # claims are stored together with their parts
    message_ttl: bool = False
    push_back: bool = True  # full: publishers wait. False: the oldest messages go
    max_per_subject: int = 0
    max_bytes: int = 0
    max_age_s: float = 0.0
    marker_ttl_s: float = 0.0  # how long the server says that a key has expired
    bound_key: str = ""  # the run file's key for the bound that pushes back
    consumers: tuple[Consumer, ...] = ()
    mirror: Mirror | None = None  # a copy of another stream, instead of a stream that is written here
    duplicate_window_s: float = DUPLICATE_WINDOW_S

    @property
    def relief(self) -> str:
        """Who makes room when it pushes back, and which key allows more; "" if it doesn't push back."""
        if not self.push_back:
            return ""
        more = f", or raise {self.bound_key}" if self.bound_key else ""
        return f"room comes when {self.released} (read by {self.reader}){more}"


def build_rows(names: "Topology") -> tuple[Row, ...]:
    """Every stream of a run."""
    root, limits = names.root, names.limits
    tasks = [Consumer(name=names.task_consumer(e), subject=names.task(e), depth_key=f"task.{e}") for e in names.envs]
    evals = [
        Consumer(name=names.eval_consumer(e), subject=names.eval_task(e), depth_key=f"task.{e}.eval")
        for e in names.envs
    ]
    gens = [Consumer(name=names.gen_consumer(p), subject=names.gen(p), depth_key=f"gen.{p}") for p in names.policies]
    shared = (
        Row(
            kind=Kind.TASKS, stream=names.tasks, subjects=(f"{root}.task.*", f"{root}.task.*.eval"), parts=(),
            message="Task", producer="dataflow", reader="rollout", released="its terminal Episode is stored",
            queue=True, max_per_subject=limits.max_tasks, bound_key="bus.max_tasks", consumers=(*tasks, *evals),
        ),
        Row(
            kind=Kind.GEN, stream=names.gen_requests, subjects=(f"{root}.gen.*.any",), parts=(),
            message="GenRequest", producer="rollout, gateway", reader="policy",
            released="a replica accepts it; the requester supervises", queue=True, memory=True, message_ttl=True,
            max_per_subject=limits.max_requests, consumers=tuple(gens),
        ),
        Row(
            kind=Kind.EPISODES, stream=names.episodes, subjects=(f"{root}.episode.*",),
            parts=(f"{root}.episode.*.{PART}.*",), message="Episode", producer="rollout",
            reader="dataflow by cursor; recorder, users", atomic=True, max_bytes=limits.max_episodes_bytes,
            bound_key="bus.max_episodes_bytes",
            released="below dataflow's snapshot and every episode still referred to",
        ),
        Row(
            kind=Kind.DECISIONS, stream=names.decisions, subjects=(names.decision(),),
            parts=(f"{names.decision()}.{PART}.*",), message="Decision", producer="dataflow", reader="dataflow",
            released="below dataflow's snapshot", atomic=True,
        ),
        Row(
            kind=Kind.SUBMIT, stream=names.submissions, subjects=(names.submission(),),
            parts=(f"{names.submission()}.{PART}.*",), message="Submission", producer="users", reader="dataflow",
            released="below dataflow's snapshot", atomic=True,
        ),
        Row(
            kind=Kind.CONTROL, stream=names.controls, subjects=(names.control(),),
            parts=(f"{names.control()}.{PART}.*",), message="Control", producer="users", reader="dataflow",
            released="below dataflow's snapshot", atomic=True,
        ),
        Row(
            kind=Kind.METRICS, stream=names.metrics, subjects=(f"{root}.metric.*",),
            parts=(f"{root}.metric.*.{PART}.*",), message="Metrics", producer="all", reader="recorder, top, users",
            released="by age and size", atomic=True, push_back=False, max_bytes=limits.max_metrics_bytes,
            max_age_s=30 * DAY_S,
        ),
        Row(
            kind=Kind.EVENTS, stream=names.events, subjects=(f"{root}.event.*",),
            parts=(f"{root}.event.*.{PART}.*",), message="Event", producer="all", reader="recorder, top, users",
            released="by age and size", atomic=True, push_back=False, max_bytes=limits.max_events_bytes,
            max_age_s=30 * DAY_S,
        ),
        Row(
            kind=Kind.BLOBS, stream=names.blobs, subjects=(),
            parts=(f"{root}.blob.*.*",), message="parts of Task, GenRequest", producer="dataflow, rollout",
            reader="rollout, policy, who may also purge here", message_ttl=True, released="the split message is acked",
            max_bytes=limits.max_blobs_bytes,
        ),
        Row(
            kind=Kind.SNAPSHOTS, stream=names.snapshots, subjects=(), parts=(f"{root}.snapshot.{PART}.*",),
            message="parts of dataflow's snapshot", producer="dataflow", reader="dataflow",
            released="a newer snapshot is stored",
        ),
        Row(
            kind=Kind.DEAD_LETTERS, stream=names.dead_letters, subjects=(f"{root}.dead.*",), parts=(),
            message="raw bytes with the reason in headers", producer="all", reader="people",
            released="by age and size", push_back=False, max_bytes=limits.max_dead_letters_bytes,
            max_age_s=30 * DAY_S,
        ),
        Row(
            kind=Kind.KV, stream=names.kv, subjects=(f"{names.kv_prefix}>",), parts=(),
            message="RunRecord, Head, Member, Lease, Progress, SnapshotPointer, Ledger, Drain, GroupClosed, Region",
            producer="all", reader="all", released="overwritten, deleted or expired", max_per_subject=1,
            message_ttl=True, marker_ttl_s=60.0,
        ),
    )  # fmt: skip
    return shared + tuple(row for policy in names.policies for row in _policy_rows(names, policy))


def _policy_rows(names: "Topology", policy: str) -> tuple[Row, ...]:
    return (
        Row(
            kind=Kind.SAMPLES, stream=names.samples(policy), subjects=(names.sample(policy),),
            parts=(f"{names.sample(policy)}.{PART}.*",), message="SampleBatch", producer="dataflow",
            reader="that policy's trainer by cursor", atomic=True,
            released="below the trainer's checkpoint and dataflow's snapshot, never the last",
        ),
        Row(
            kind=Kind.WEIGHTS, stream=names.weights(policy), subjects=(names.manifest(policy),),
            parts=(f"{names.root}.weights.{policy}.*.{PART}.*",),
            message="Manifest", producer="that policy's trainer", reader="policy replicas, region mirrors",
            atomic=True,
            released="below the older of the two newest fulls", max_bytes=names.limits.max_weights_bytes,
            bound_key="bus.max_weights_bytes",
        ),
    )  # fmt: skip
