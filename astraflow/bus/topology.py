"""The one table of subjects, streams and consumers of a run.

Pure: names and settings only, no I/O. Invariants: every name comes from here; names of streams are unique over regions
(acks of equally named streams in two JetStream domains collide, facts/nats.md §5); the bounds that push back are per
subject, so that one dead env or policy can't fill what others need.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from astraflow.config import RunConfig
from astraflow.errors import ConfigError

_NAME = re.compile(r"[a-z0-9-]{1,32}")
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,128}")

DAY_S = 86_400.0
DUPLICATE_WINDOW_S = 600.0  # longer than any retry of a publish
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
    max_message_bytes: int = 512 << 10  # larger messages are split; the server's max_payload may lower it
    replicas: int = 1


class Kind(StrEnum):
    """Streams by purpose; part of their names."""

    TASKS = "TASKS"
    GEN = "GEN"
    EPISODES = "EPISODES"
    DECISIONS = "DECISIONS"
    SAMPLES = "SAMPLES"
    WEIGHTS = "WEIGHTS"
    METRICS = "METRICS"
    EVENTS = "EVENTS"
    BLOBS = "BLOBS"
    DEAD_LETTERS = "DEAD_LETTERS"
    KV = "KV"


@dataclass(frozen=True, kw_only=True)
class Consumer:
    """A shared durable pull consumer of a work queue."""

    name: str
    subject: str
    depth_key: str  # how `Bus.stream_depths` calls it


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
    consumers: tuple[Consumer, ...] = ()


def _matches(pattern: str, subject: str) -> bool:
    wanted, tokens = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        return len(tokens) >= len(wanted) and _matches(".".join(wanted[:-1]), ".".join(tokens[: len(wanted) - 1]))
    return len(wanted) == len(tokens) and all(w in ("*", t) for w, t in zip(wanted, tokens, strict=True))


class Topology:
    """Subjects, streams and consumers of one run in one region. Raises ConfigError for names that can't be tokens."""

    def __init__(
        self, *, run: str, region: str, envs: Iterable[str], policies: Iterable[str], limits: Limits | None = None
    ) -> None:
        self.run, self.region = _name(run, "run"), _name(region, "region")
        self.envs = tuple(_name(env, "env") for env in envs)
        self.policies = tuple(_name(policy, "policy") for policy in policies)
        self.limits = limits or Limits()
        self.root = f"af.{run}"
        self.bucket = f"AF_{run}_{region}"
        self.tasks = self._stream(Kind.TASKS)
        self.gen_requests = self._stream(Kind.GEN)
        self.episodes = self._stream(Kind.EPISODES)
        self.decisions = self._stream(Kind.DECISIONS)
        self.metrics = self._stream(Kind.METRICS)
        self.events = self._stream(Kind.EVENTS)
        self.blobs = self._stream(Kind.BLOBS)
        self.dead_letters = self._stream(Kind.DEAD_LETTERS)
        self.kv = f"KV_{self.bucket}"  # the name that `nats kv` expects
        self.rows = self._rows()
        self.row_of_stream = {row.stream: row for row in self.rows}
        self.row_of = lru_cache(maxsize=4096)(self._find_row)

    def task(self, env: str) -> str:
        return f"{self.root}.task.{_name(env, 'env')}"

    def eval_task(self, env: str) -> str:
        return f"{self.task(env)}.eval"

    def episode(self, env: str) -> str:
        return f"{self.root}.episode.{_name(env, 'env')}"

    def sample(self, policy: str) -> str:
        return f"{self.root}.sample.{_name(policy, 'policy')}"

    def gen(self, policy: str) -> str:
        return f"{self.root}.gen.{_name(policy, 'policy')}.any"

    def gen_cancel(self, policy: str) -> str:
        return f"{self.root}.gencancel.{_name(policy, 'policy')}"

    def reply(self, node: str) -> str:
        """Prefix of a node's reply subjects; append .<anything>."""
        return f"{self.root}.reply.{_token(node, 'node')}"

    def manifest(self, policy: str) -> str:
        return f"{self.root}.weights.{_name(policy, 'policy')}.manifest"

    def weight_part(self, policy: str, epoch: int) -> str:
        """Prefix of the parts of a policy's versions; `put_parts` appends .<digest>."""
        return f"{self.root}.weights.{_name(policy, 'policy')}.{epoch}.{PART}"

    def decision(self) -> str:
        return f"{self.root}.decision"

    def event(self, level: str) -> str:
        return f"{self.root}.event.{_token(level, 'level')}"

    def metric(self, kind: str) -> str:
        return f"{self.root}.metric.{_token(kind, 'kind')}"

    def snapshot_part(self) -> str:
        """Prefix of the parts of snapshots, in BLOBS."""
        return f"{self.root}.snapshot.{PART}"

    def blob(self, owner: str) -> str:
        """Prefix of the parts of one split task or request, in BLOBS."""
        return f"{self.root}.blob.{_token(owner, 'owner')}"

    def dead_letter(self, stream_kind: str) -> str:
        return f"{self.root}.dead.{_token(stream_kind, 'stream')}"

    def samples(self, policy: str) -> str:
        """Stream of a policy's batches."""
        return f"{self._stream(Kind.SAMPLES)}_{_name(policy, 'policy')}"

    def weights(self, policy: str) -> str:
        """Stream of a policy's versions."""
        return f"{self._stream(Kind.WEIGHTS)}_{_name(policy, 'policy')}"

    def task_consumer(self, env: str) -> str:
        return f"tasks_{self.region}_{_name(env, 'env')}"

    def eval_consumer(self, env: str) -> str:
        return f"evals_{self.region}_{_name(env, 'env')}"

    def gen_consumer(self, policy: str) -> str:
        return f"gen_{self.region}_{_name(policy, 'policy')}"

    def kv_subject(self, key: str) -> str:
        """Subject of a KV key. Raises ConfigError for a key that isn't dotted tokens."""
        for token in key.split("."):
            _token(token, f"token of KV key {key!r}")
        return f"{self.kv_prefix}{key}"

    @property
    def kv_prefix(self) -> str:
        """What stands before a key in its subject."""
        return f"$KV.{self.bucket}."

    def _stream(self, kind: Kind) -> str:
        return f"{self.bucket}_{kind}"

    def _find_row(self, subject: str) -> Row:
        """The stream that stores `subject`. Raises ConfigError if none does."""
        for row in self.rows:
            if any(_matches(pattern, subject) for pattern in (*row.subjects, *row.parts)):
                return row
        raise ConfigError(f"no stream of run {self.run!r} stores subject {subject!r}; see astraflow/bus/topology.py")

    def _rows(self) -> tuple[Row, ...]:
        root, limits = self.root, self.limits
        tasks = [Consumer(name=self.task_consumer(e), subject=self.task(e), depth_key=f"task.{e}") for e in self.envs]
        evals = [
            Consumer(name=self.eval_consumer(e), subject=self.eval_task(e), depth_key=f"task.{e}.eval")
            for e in self.envs
        ]
        gens = [Consumer(name=self.gen_consumer(p), subject=self.gen(p), depth_key=f"gen.{p}") for p in self.policies]
        shared = (
            Row(
                kind=Kind.TASKS, stream=self.tasks, subjects=(f"{root}.task.*", f"{root}.task.*.eval"), parts=(),
                message="Task", producer="dataflow", reader="rollout", released="its terminal Episode is stored",
                queue=True, max_per_subject=limits.max_tasks, consumers=(*tasks, *evals),
            ),
            Row(
                kind=Kind.GEN, stream=self.gen_requests, subjects=(f"{root}.gen.*.any",), parts=(),
                message="GenRequest", producer="rollout, gateway", reader="policy",
                released="a replica accepts it; the requester supervises", queue=True, memory=True, message_ttl=True,
                max_per_subject=limits.max_requests, consumers=tuple(gens),
            ),
            Row(
                kind=Kind.EPISODES, stream=self.episodes, subjects=(f"{root}.episode.*",),
                parts=(f"{root}.episode.*.{PART}.*",), message="Episode", producer="rollout",
                reader="dataflow by cursor; recorder, users", atomic=True, max_bytes=limits.max_episodes_bytes,
                released="below dataflow's snapshot and every episode still referred to",
            ),
            Row(
                kind=Kind.DECISIONS, stream=self.decisions, subjects=(self.decision(),),
                parts=(f"{self.decision()}.{PART}.*",), message="Decision", producer="dataflow", reader="dataflow",
                released="below dataflow's snapshot", atomic=True,
            ),
            Row(
                kind=Kind.METRICS, stream=self.metrics, subjects=(f"{root}.metric.*",),
                parts=(f"{root}.metric.*.{PART}.*",), message="Metrics", producer="all", reader="recorder, top, users",
                released="by age and size", atomic=True, push_back=False, max_bytes=limits.max_metrics_bytes,
                max_age_s=30 * DAY_S,
            ),
            Row(
                kind=Kind.EVENTS, stream=self.events, subjects=(f"{root}.event.*",),
                parts=(f"{root}.event.*.{PART}.*",), message="Event", producer="all", reader="recorder, top, users",
                released="by age and size", atomic=True, push_back=False, max_bytes=limits.max_events_bytes,
                max_age_s=30 * DAY_S,
            ),
            Row(
                kind=Kind.BLOBS, stream=self.blobs, subjects=(),
                parts=(f"{root}.blob.*.*", f"{root}.snapshot.{PART}.*"), message="parts of Task, GenRequest, snapshot",
                producer="dataflow, rollout", reader="rollout, policy, dataflow", message_ttl=True,
                released="the split message is acked; a newer snapshot is stored", max_bytes=limits.max_blobs_bytes,
            ),
            Row(
                kind=Kind.DEAD_LETTERS, stream=self.dead_letters, subjects=(f"{root}.dead.*",), parts=(),
                message="raw bytes with the reason in headers", producer="all", reader="people",
                released="by age and size", push_back=False, max_bytes=limits.max_dead_letters_bytes,
                max_age_s=30 * DAY_S,
            ),
            Row(
                kind=Kind.KV, stream=self.kv, subjects=(f"{self.kv_prefix}>",), parts=(),
                message="RunRecord, Head, Member, Lease, Progress, SnapshotPointer, Ledger", producer="all",
                reader="all", released="overwritten, deleted or expired", max_per_subject=1, message_ttl=True,
                marker_ttl_s=60.0,
            ),
        )  # fmt: skip
        return shared + tuple(row for policy in self.policies for row in self._policy_rows(policy))

    def _policy_rows(self, policy: str) -> tuple[Row, ...]:
        return (
            Row(
                kind=Kind.SAMPLES, stream=self.samples(policy), subjects=(self.sample(policy),),
                parts=(f"{self.sample(policy)}.{PART}.*",), message="SampleBatch", producer="dataflow",
                reader="that policy's trainer by cursor", atomic=True,
                released="below the trainer's checkpoint and dataflow's snapshot, never the last",
            ),
            Row(
                kind=Kind.WEIGHTS, stream=self.weights(policy), subjects=(self.manifest(policy),),
                parts=(f"{self.root}.weights.{policy}.*.{PART}.*",),
                message="Manifest", producer="that policy's trainer", reader="policy replicas, region mirrors",
                atomic=True,
                released="below the older of the two newest fulls", max_bytes=self.limits.max_weights_bytes,
            ),
        )  # fmt: skip


def topology_of(config: RunConfig) -> Topology:
    """The topology that a run file asks for."""
    limits = Limits(
        max_tasks=config.bus.max_tasks,
        max_episodes_bytes=config.bus.max_episodes_bytes,
        max_weights_bytes=config.bus.max_weights_bytes,
        ack_wait_s=config.bus.ack_wait_s,
    )
    return Topology(
        run=config.run.name, region=config.bus.region, envs=config.envs, policies=config.policies, limits=limits
    )


def _name(value: str, what: str) -> str:
    if not _NAME.fullmatch(value):
        raise ConfigError(f"{what} {value!r} isn't a name; use 1 to 32 lower-case letters, digits and dashes")
    return value


def _token(value: str, what: str) -> str:
    if not _TOKEN.fullmatch(value):
        raise ConfigError(f"{what} {value!r} can't be part of a subject; use letters, digits, '-' and '_'")
    return value
