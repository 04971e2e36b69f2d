"""The table of streams in a region away from home: what `rows.py` is for the home region.

Pure. Down the link come mirrors, which keep the hub's sequences: the KV bucket and every policy's WEIGHTS, so that a
version crosses the link once for all replicas. Up go outboxes, each with a consumer for the region's keeper, which
stores the messages at the hub and acks. (JetStream sources would do that too, but they would tear split messages apart
in the hub's log, where a purge counts on finding the parts right before their claim; and the region would need the
right to change the hub's streams.) Tasks are brought by the keeper; requests and answers never leave the region.
Invariant: no stream here has a name or a subject of the home region.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from astraflow.bus.rows import Consumer, Kind, Mirror, Row, build_rows

if TYPE_CHECKING:
    from astraflow.bus.topology import Topology

SHORT_WINDOW_S = 0.1  # the least that the server takes: a task that is brought again is meant to be played again


def build_region_rows(names: "Topology") -> tuple[Row, ...]:
    """Every stream of a run in a region that isn't its home."""
    there = names.there()
    rows = [_members(names)]  # before the KV: what is put under member.* is stored there
    for row in build_rows(names):
        match row.kind:
            case Kind.TASKS:
                rows.append(replace(row, producer="the region's keeper", duplicate_window_s=SHORT_WINDOW_S))
            case Kind.GEN | Kind.BLOBS | Kind.DEAD_LETTERS:
                rows.append(row)
            case Kind.EPISODES:
                whole = replace(row, queue=True, atomic=False, parts=(), duplicate_window_s=SHORT_WINDOW_S)
                rows.append(_outbox(names, whole))
            case Kind.METRICS | Kind.EVENTS:
                rows.append(_outbox(names, row))
            case Kind.KV:
                rows.append(_mirror(row, there.kv, f"{there.kv_prefix}>", f"{names.kv_prefix}>"))
            case Kind.DECISIONS | Kind.SUBMIT | Kind.CONTROL | Kind.SNAPSHOTS:
                pass  # at home only
            case Kind.SAMPLES | Kind.WEIGHTS | Kind.MEMBERS:
                pass  # at home only; weights are below
    for policy in names.policies:
        (row,) = (row for row in build_rows(names) if row.stream == names.weights(policy))
        subjects, subjects_here = (f"{root}.weights.{policy}.>" for root in (there.root, names.root))
        rows.append(_mirror(row, there.weights(policy), subjects, subjects_here))
    return tuple(rows)


def _members(names: "Topology") -> Row:
    return Row(
        kind=Kind.MEMBERS, stream=names.members, subjects=(f"{names.kv_prefix}member.*",), parts=(), message="Member",
        producer="actors of the region", reader="the region's keeper", released="overwritten or expired",
        max_per_subject=1, message_ttl=True,
    )  # fmt: skip


def _outbox(names: "Topology", row: Row) -> Row:
    (subject,) = row.subjects
    consumer = Consumer(name=names.uplink_consumer(row.kind), subject=subject, depth_key=f"uplink.{row.kind.lower()}")
    return replace(row, reader="the region's keeper", consumers=(consumer,))


def _mirror(row: Row, stream: str, subjects: str, subjects_here: str) -> Row:
    return replace(
        row, mirror=Mirror(stream=stream, subjects=subjects, subjects_here=subjects_here), producer="the hub",
        released="the hub has purged it",
    )  # fmt: skip
