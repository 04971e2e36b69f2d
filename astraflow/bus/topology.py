"""Names of a run's subjects, streams, consumers and keys; with `rows.py` the one table of the bus.

A run has one home region, where its truth is kept. In another region every name is the same but for its root and the
region in it, so that actors needn't know where they are (`region_rows.py` says what is stored there).

Pure: no I/O. Invariants: every name comes from here; names of streams are unique over regions, because acks of equally
named streams in two JetStream domains collide.
"""

import re
from collections.abc import Iterable
from functools import lru_cache

from astraflow.bus.region_rows import build_region_rows
from astraflow.bus.rows import PART, Kind, Limits, Row, build_rows
from astraflow.bus.subjects import matches
from astraflow.config import RunConfig
from astraflow.errors import ConfigError

_NAME = re.compile(r"[a-z0-9-]{1,32}")
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,128}")


class Topology:
    """Subjects, streams and consumers of one run in one region. Raises ConfigError for names that can't be tokens."""

    def __init__(
        self, *, run: str, region: str, envs: Iterable[str], policies: Iterable[str], limits: Limits | None = None,
        home: str = "",
    ) -> None:  # fmt: skip
        """`home`: the run's home region; "" = this one."""
        self.run, self.region = _name(run, "run"), _name(region, "region")
        self.home = _name(home or region, "region")
        self.envs = tuple(_name(env, "env") for env in envs)
        self.policies = tuple(_name(policy, "policy") for policy in policies)
        self.limits = limits or Limits()
        self.root = f"af.{run}" if self.at_home else f"{region_prefix(region)}.{run}"
        self.bucket = f"AF_{run}_{region}"
        self.tasks = self._stream(Kind.TASKS)
        self.gen_requests = self._stream(Kind.GEN)
        self.episodes = self._stream(Kind.EPISODES)
        self.decisions = self._stream(Kind.DECISIONS)
        self.submissions = self._stream(Kind.SUBMIT)
        self.controls = self._stream(Kind.CONTROL)
        self.metrics = self._stream(Kind.METRICS)
        self.events = self._stream(Kind.EVENTS)
        self.blobs = self._stream(Kind.BLOBS)
        self.snapshots = self._stream(Kind.SNAPSHOTS)
        self.dead_letters = self._stream(Kind.DEAD_LETTERS)
        self.kv = f"KV_{self.bucket}"  # the name that `nats kv` expects
        self.members = self._stream(Kind.MEMBERS)  # only away from home
        self.rows = build_rows(self) if self.at_home else build_region_rows(self)
        self.row_of_stream = {row.stream: row for row in self.rows}
        self.row_of = lru_cache(maxsize=4096)(self._find_row)

    @property
    def at_home(self) -> bool:
        """Whether this region keeps the run's truth."""
        return self.region == self.home

    def there(self) -> "Topology":
        """The run's names in its home region."""
        return Topology(run=self.run, region=self.home, envs=self.envs, policies=self.policies, limits=self.limits)

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

    def gen_replica(self, policy: str, replica: str) -> str:
        """For one replica, not stored."""
        return f"{self.root}.gen.{_name(policy, 'policy')}.replica.{check_token(replica, 'replica')}"

    def gen_cancel(self, policy: str) -> str:
        return f"{self.root}.gencancel.{_name(policy, 'policy')}"

    def reply(self, node: str) -> str:
        """Prefix of a node's reply subjects; append .<anything>."""
        return f"{self.root}.reply.{check_token(node, 'node')}"

    def manifest(self, policy: str) -> str:
        return f"{self.root}.weights.{_name(policy, 'policy')}.manifest"

    def weight_part(self, policy: str, epoch: int) -> str:
        """Prefix of the parts of a policy's versions; `Parts.put` appends .<digest>."""
        return f"{self.root}.weights.{_name(policy, 'policy')}.{epoch}.{PART}"

    def decision(self) -> str:
        return f"{self.root}.decision"

    def submission(self) -> str:
        return f"{self.root}.submit"

    def control(self) -> str:
        return f"{self.root}.control"

    def event(self, level: str) -> str:
        return f"{self.root}.event.{check_token(level, 'level')}"

    def metric(self, kind: str) -> str:
        return f"{self.root}.metric.{check_token(kind, 'kind')}"

    def snapshot_part(self) -> str:
        """Prefix of the parts of snapshots."""
        return f"{self.root}.snapshot.{PART}"

    def blob(self, owner: str) -> str:
        """Prefix of the parts of one split task or request, in BLOBS."""
        return f"{self.root}.blob.{check_token(owner, 'owner')}"

    def dead_letter(self, stream_kind: str) -> str:
        return f"{self.root}.dead.{check_token(stream_kind, 'stream')}"

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

    def uplink_consumer(self, kind: Kind) -> str:
        """Of the streams that go from a region to the home region."""
        return f"uplink_{self.region}_{kind}"

    def kv_subject(self, key: str) -> str:
        """Subject of a KV key. Raises ConfigError for a key that isn't dotted tokens."""
        for token in key.split("."):
            check_token(token, f"token of KV key {key!r}")
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
            if any(matches(pattern, subject) for pattern in (*row.subjects, *row.parts)):
                return row
        raise ConfigError(f"no stream of run {self.run!r} stores subject {subject!r}; see astraflow/bus/topology.py")


def region_prefix(region: str) -> str:
    """The first token of a region's own subjects. They stay on its side of the leaf link."""
    return f"af-{region}"


def topology_of(config: RunConfig, *, region: str = "") -> Topology:
    """The topology that a run file asks for, as seen from `region`; "" = the run's home."""
    limits = Limits(
        max_tasks=config.bus.max_tasks,
        max_episodes_bytes=config.bus.max_episodes_bytes,
        max_weights_bytes=config.bus.max_weights_bytes,
        ack_wait_s=config.bus.ack_wait_s,
        answer_s=config.bus.answer_s,
    )
    return Topology(
        run=config.run.name, region=region or config.bus.region, home=config.bus.region, envs=config.envs,
        policies=config.policies, limits=limits,
    )  # fmt: skip


def _name(value: str, what: str) -> str:
    if not _NAME.fullmatch(value):
        raise ConfigError(f"{what} {value!r} isn't a name; use 1 to 32 lower-case letters, digits and dashes")
    return value


def check_token(value: str, what: str) -> str:
    """`value`, if it can be one token of a subject. Raises ConfigError."""
    if not _TOKEN.fullmatch(value):
        raise ConfigError(f"{what} {value!r} can't be part of a subject; use letters, digits, '-' and '_'")
    return value
