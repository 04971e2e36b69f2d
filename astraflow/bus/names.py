"""Names of a run's subjects, streams and consumers, and what may be one.

A run has one home region, where its truth is kept. In another region every name is the same but for its root and the
region in it, so that actors needn't know where they are. It doesn't say what is stored or who may do what
(`wiring.py`). Pure. Invariants: every name comes from here, and every KV key from a family of the wiring; names of
streams are unique over regions, because acks of equally named streams in two JetStream domains collide.
"""

import re
from enum import StrEnum

from astraflow.config.kinds import NAME_PATTERN
from astraflow.errors import ConfigError

PART = "part"  # token between a subject and the digest of one of its parts
# First tokens of the KV keys that others write than who holds the run's truth. They have a stream, and so subjects, of
# their own: who may write a key may roll up its stream.
LOOSE = ("member", "drain", "probe")
INBOX = "_INBOX"  # first token of the subjects of answers
KV_SUBJECTS = "$KV."  # what the subjects of all KV buckets begin with
_NAME = re.compile(NAME_PATTERN)
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,128}")


class _AnyToken(str):
    """Stands for every env, policy, actor … : for patterns of subjects."""


ANY = _AnyToken("*")


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
    MEMBERS = "MEMBERS"
    ANNOUNCED = "ANNOUNCED"  # only in a region away from home


class Names:
    """Names of one run in one region. Raises ConfigError for what can't be a name."""

    def __init__(self, *, run: str, region: str, home: str = "") -> None:
        """`home`: the run's home region; "" = this one."""
        self.run, self.region = check_name(run, "run"), check_name(region, "region")
        self.home = check_name(home or region, "region")
        self.root = f"af.{run}" if self.at_home else f"{region_prefix(region)}.{run}"
        self.bucket = f"AF_{run}_{region}"
        self.kv_prefix = f"{KV_SUBJECTS}{self.bucket}."  # what stands before a key in its subject
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
        self.members = self._stream(Kind.MEMBERS)
        self.announced = self._stream(Kind.ANNOUNCED)  # members of a region away from home, for its keeper

    @property
    def at_home(self) -> bool:
        """Whether this region keeps the run's truth."""
        return self.region == self.home

    def task(self, env: str) -> str:
        return f"{self.root}.task.{check_name(env, 'env')}"

    def eval_task(self, env: str) -> str:
        return f"{self.task(env)}.eval"

    def episode(self, env: str) -> str:
        return f"{self.root}.episode.{check_name(env, 'env')}"

    def sample(self, policy: str) -> str:
        return f"{self.root}.sample.{check_name(policy, 'policy')}"

    def gen(self, policy: str) -> str:
        return f"{self.root}.gen.{check_name(policy, 'policy')}.any"

    def gen_replica(self, policy: str, replica: str) -> str:
        """For one replica, not stored."""
        return f"{self.root}.gen.{check_name(policy, 'policy')}.replica.{check_token(replica, 'replica')}"

    def gen_cancel(self, policy: str) -> str:
        return f"{self.root}.gencancel.{check_name(policy, 'policy')}"

    @property
    def replies(self) -> str:
        """What every reply subject begins with."""
        return f"{self.root}.reply."

    def reply(self, node: str) -> str:
        """Prefix of a node's reply subjects; append .<anything>."""
        return f"{self.replies}{check_token(node, 'node')}"

    def manifest(self, policy: str) -> str:
        return f"{self.root}.weights.{check_name(policy, 'policy')}.manifest"

    def weight_part(self, policy: str, epoch: int | _AnyToken) -> str:
        """Prefix of the parts of a policy's versions; `Parts.put` appends .<digest>."""
        return f"{self.root}.weights.{check_name(policy, 'policy')}.{epoch}.{PART}"

    def weights_subjects(self, policy: str) -> str:
        """Everything of a policy's versions, as a pattern."""
        return f"{self.root}.weights.{check_name(policy, 'policy')}.>"

    def news(self, kind: Kind, subject: str) -> str:
        """Where a stream tells, without its data, that a message on `subject` is stored; members' with the KV's."""
        kind = Kind.KV if kind is Kind.MEMBERS else kind
        return f"{self.root}.news.{kind}.{subject}"

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
        return f"{self._stream(Kind.SAMPLES)}_{check_name(policy, 'policy')}"

    def weights(self, policy: str) -> str:
        """Stream of a policy's versions."""
        return f"{self._stream(Kind.WEIGHTS)}_{check_name(policy, 'policy')}"

    def task_consumer(self, env: str) -> str:
        return f"tasks_{self.region}_{check_name(env, 'env')}"

    def eval_consumer(self, env: str) -> str:
        return f"evals_{self.region}_{check_name(env, 'env')}"

    def gen_consumer(self, policy: str) -> str:
        return f"gen_{self.region}_{check_name(policy, 'policy')}"

    def uplink_consumer(self, kind: Kind) -> str:
        """Of the streams that go from a region to the home region."""
        return f"uplink_{self.region}_{kind}"

    def kv_subject(self, key: str) -> str:
        """Subject of a KV key. Raises ConfigError for a key that isn't dotted tokens."""
        for token in key.split("."):
            check_token(token, f"token of KV key {key!r}")
        return f"{self._kv_root(key)}{key}"

    def kv_pattern(self, prefix: str) -> str:
        """Subjects of the KV keys below a prefix: "head." is every key that starts so, "run" that key; "" is every
        key but the loose ones."""
        return f"{self._kv_root(prefix)}{prefix}{'>' if not prefix or prefix.endswith('.') else ''}"

    def kv_key(self, subject: str) -> str:
        """The reverse of `kv_subject`."""
        return subject.removeprefix(self.kv_prefix).removeprefix(f"{self.root}.")

    def kv_stream(self, key: str) -> str:
        """The stream that has a KV key."""
        return self.members if key.partition(".")[0] in LOOSE else self.kv

    def _kv_root(self, key: str) -> str:
        return f"{self.root}." if key.partition(".")[0] in LOOSE else self.kv_prefix

    def _stream(self, kind: Kind) -> str:
        return f"{self.bucket}_{kind}"


def kv_stream_parts(stream: str) -> tuple[str, str] | None:
    """Run and region of a KV bucket's stream; None if it isn't one of ours. Neither has an underscore."""
    run, _, region = stream.removeprefix("KV_AF_").rpartition("_")
    return (run, region) if stream.startswith("KV_AF_") else None


def region_prefix(region: str) -> str:
    """The first token of a region's own subjects. They stay on its side of the leaf link."""
    return f"af-{region}"


def check_name(value: str, what: str) -> str:
    """`value`, if it can be the name of a run, region, env or policy. Raises ConfigError."""
    if not isinstance(value, _AnyToken) and not _NAME.fullmatch(value):
        raise ConfigError(
            f"{what} {value!r} isn't a name; use 1 to 32 lower-case letters, digits and dashes, not a dash at first"
        )
    return value


def check_token(value: str, what: str) -> str:
    """`value`, if it can be one token of a subject. Raises ConfigError."""
    if not isinstance(value, _AnyToken) and not _TOKEN.fullmatch(value):
        raise ConfigError(f"{what} {value!r} can't be part of a subject; use letters, digits, '-' and '_'")
    return value
