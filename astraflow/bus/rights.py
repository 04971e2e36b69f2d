"""What each role may do on the bus of one run: the subjects that nats-server lets it publish and subscribe to.

Pure: no I/O, no keys (`secure.py`). Admin, dataflow and trainer keep the run's truth and work in the run's own account.
The other roles are guests in a second account that is joined to the first by a few service imports. That border is
needed because nats-server doesn't check the *reply* subject of a request: in one account, a rollout could have the
server "answer" into the weights. A guest's answers stay on the guests' side (tests/bus/test_secure.py).
Invariant: no guest can write weights, samples, tasks, decisions, snapshots, or a key other than member.*, drain.* and
probe.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from astraflow.bus.rows import PART, PROBE_KEY
from astraflow.bus.topology import Topology

API = "$JS.API"
INBOXES = "_INBOX.>"


class BusRole(StrEnum):
    """Who connects; the stem of its credentials file."""

    ADMIN = "admin"  # `up`: streams, the run's record; unlimited in its run
    DATAFLOW = "dataflow"
    TRAINER = "trainer"
    POLICY = "policy"
    ROLLOUT = "rollout"
    OBSERVER = "observer"  # recorder, joining nodes, `status`
    USER = "user"  # people and their programs: reads everything, submits tasks, gives orders, may drain nodes


GUESTS = (BusRole.POLICY, BusRole.ROLLOUT, BusRole.OBSERVER, BusRole.USER)


@dataclass(frozen=True, kw_only=True)
class Rights:
    """Subjects, with NATS wildcards."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def rights_of(role: BusRole, names: Topology) -> Rights | None:
    """A role's rights in a run and region; None = everything. Envs and policies of `names` don't matter."""
    if role is BusRole.ADMIN:
        return None
    publish = [*_everybody(names), *_of_role(role, names)]
    heard = {
        BusRole.POLICY: (f"{names.root}.gencancel.*", f"{names.root}.gen.*.replica.*"),
        BusRole.ROLLOUT: (f"{names.root}.reply.>",),
    }
    return Rights(publish=tuple(publish), subscribe=(INBOXES, *heard.get(role, ())))


def guest_services(names: Topology) -> tuple[str, ...]:
    """What passes the border from the guests' account into the run's: all that any guest may store, and requests."""
    stored = {
        subject
        for role in GUESTS
        for subject in (*_everybody(names), *_of_role(role, names))
        if not subject.startswith(("$JS.", "_INBOX", f"{names.root}.reply.", f"{names.root}.gencancel."))
        and ".replica." not in subject
    }
    return (f"{API}.>", "$JS.ACK.>", *sorted(stored))


def _everybody(names: Topology) -> tuple[str, ...]:
    """Read what is stored, be present, tell metrics and events, put dead letters away."""
    return (
        INBOXES,
        f"{API}.STREAM.INFO.*",
        f"{API}.CONSUMER.INFO.*.*",
        f"{API}.STREAM.MSG.GET.*",
        f"{API}.DIRECT.GET.>",
        *_reader(names.kv),
        f"{names.kv_prefix}member.*",
        f"{names.kv_prefix}{PROBE_KEY}",
        *_whole_and_parts(f"{names.root}.event.*"),
        *_whole_and_parts(f"{names.root}.metric.*"),
        f"{names.root}.dead.*",
    )


def _of_role(role: BusRole, names: Topology) -> tuple[str, ...]:
    root, kv = names.root, names.kv_prefix
    blobs, purge_blobs = f"{root}.blob.*.*", f"{API}.STREAM.PURGE.{names.blobs}"
    observed = (*_reader(names.metrics), *_reader(names.events), *_reader(names.episodes))
    match role:
        case BusRole.DATAFLOW:
            return (
                *_reader("*"), f"{API}.STREAM.PURGE.*", f"{root}.task.*", f"{root}.task.*.eval", blobs,
                *_whole_and_parts(f"{root}.sample.*"), *_whole_and_parts(names.decision()),
                f"{names.snapshot_part()}.*", *_keys(kv, "run", "lease.>", "ledger.*", "snapshot.*", "closed.>"),
            )  # fmt: skip
        case BusRole.TRAINER:
            return (
                *_reader("*"), f"{API}.STREAM.PURGE.*", f"{root}.weights.>",
                *_keys(kv, "head.*", "lease.>", "progress.*"),
            )  # fmt: skip
        case BusRole.POLICY:
            return (*_puller(names.gen_requests), purge_blobs, f"{root}.reply.>")
        case BusRole.ROLLOUT:
            return (
                *_puller(names.tasks), purge_blobs, *_whole_and_parts(f"{root}.episode.*"), f"{root}.gen.*.any", blobs,
                f"{root}.gen.*.replica.*", f"{root}.gencancel.*",
            )  # fmt: skip
        case BusRole.OBSERVER:
            return (*observed, f"{API}.STREAM.NAMES")
        case BusRole.USER:
            return (
                *observed, *_reader(names.decisions), *_keys(kv, "drain.*"), *_whole_and_parts(names.submission()),
                *_whole_and_parts(names.control()),
            )  # fmt: skip
        case BusRole.ADMIN:
            return ()


def _reader(stream: str) -> tuple[str, ...]:
    """Read a log or the KV bucket in order, with a consumer of one's own."""
    return tuple(f"{API}.CONSUMER.{verb}.{stream}.*" for verb in ("CREATE", "MSG.NEXT", "DELETE"))


def _puller(stream: str) -> tuple[str, ...]:
    """Take from a work queue and ack. The shared consumers themselves are made by `up`."""
    return (f"{API}.CONSUMER.MSG.NEXT.{stream}.*", f"$JS.ACK.{stream}.>")


def _whole_and_parts(subject: str) -> tuple[str, ...]:
    return (subject, f"{subject}.{PART}.*")


def _keys(prefix: str, *keys: str) -> Sequence[str]:
    return [prefix + key for key in keys]
