"""The wiring in a region away from home, derived from that of the home region.

Pure. Down the link come mirrors, which keep the hub's sequences: the KV bucket, MEMBERS and every policy's WEIGHTS, so
that a version crosses the link once for all replicas. Up go outboxes, each with a consumer for the region's keeper,
which stores the messages at the hub and acks. (JetStream sources would do that too, but they would tear split messages
apart in the hub's log, where a purge counts on finding the parts right before their claim; and the region would need
the right to change the hub's streams.) Tasks are brought by the keeper; requests and answers never leave the region.
Invariant: no stream here has a name or a subject of the home region.
"""

from collections.abc import Sequence
from dataclasses import replace

from astraflow.bus.names import Kind, Names
from astraflow.bus.wiring import MEMBER, SHORT_WINDOW_S, Consumer, Mirror, Row
from astraflow.messages import Member
from astraflow.messages.roles import Role


def region_rows(names: Names, there: Names, rows: Sequence[Row]) -> tuple[Row, ...]:
    """Every stream of a run in a region that isn't its home. `rows`: the table with the region's names."""
    found = [_announced(names)]  # first: what is put under member.* is stored there
    for row in rows:
        match row.kind:
            case Kind.TASKS:
                found.append(replace(row, writers=(Role.REGION,), duplicate_window_s=SHORT_WINDOW_S))
            case Kind.GEN | Kind.BLOBS | Kind.DEAD_LETTERS:
                found.append(row)
            case Kind.EPISODES:
                whole = replace(row, queue=True, atomic=False, parts=(), news="", duplicate_window_s=SHORT_WINDOW_S)
                found.append(_outbox(names, whole))
            case Kind.METRICS | Kind.EVENTS:
                found.append(_outbox(names, row))
            case Kind.KV:
                found.append(_mirror(row, there.kv, f"{there.kv_prefix}>", f"{names.kv_prefix}>"))
            case Kind.WEIGHTS:
                origin, here = there.weights_subjects(row.policy), names.weights_subjects(row.policy)
                found.append(_mirror(row, there.weights(row.policy), origin, here))
            case Kind.MEMBERS:
                found.append(_mirror(row, there.members, f"{there.root}.>", f"{names.root}.>"))
            case Kind.DECISIONS | Kind.SUBMIT | Kind.CONTROL | Kind.SNAPSHOTS | Kind.SAMPLES | Kind.ANNOUNCED:
                pass  # at home only; the region's own members are above
    return tuple(found)


def _announced(names: Names) -> Row:
    return Row(
        kind=Kind.ANNOUNCED, stream=names.announced, subjects=(names.kv_pattern(MEMBER.pattern),), messages=(Member,),
        writers=MEMBER.writers, readers=(Role.REGION,), released="overwritten or expired", max_per_subject=1,
        message_ttl=True, news=names.news(Kind.ANNOUNCED, ">"),
    )  # fmt: skip


def _outbox(names: Names, row: Row) -> Row:
    (subject,) = row.subjects
    consumer = Consumer(name=names.uplink_consumer(row.kind), subject=subject, depth_key=f"uplink.{row.kind.lower()}")
    return replace(row, readers=(Role.REGION,), consumers=(consumer,))


def _mirror(row: Row, stream: str, subjects: str, subjects_here: str) -> Row:
    return replace(
        row, mirror=Mirror(stream=stream, subjects=subjects, subjects_here=subjects_here), writers=(),
        released="the hub has purged it",
    )  # fmt: skip
