"""Create a run's streams and consumers, or check that they are as the table says.

It looks first and creates only what is missing, so that a role that only uses streams needs no right to create any.
It deletes and updates no stream. Invariant: after `ensure` every row of the topology exists with the row's settings;
what differs raises BusError that names the setting, both values and the next step.
"""

from typing import Any

from astraflow.bus.leaf import HUB_DOMAIN
from astraflow.bus.publish import NO_STORAGE
from astraflow.bus.session import Session
from astraflow.bus.topology import Topology
from astraflow.bus.wiring import CLUSTER_REPLICAS, Consumer, Limits, Mirror, Row
from astraflow.concurrency import in_parallel
from astraflow.errors import ApiError, BusError, DeniedError

_STREAM_EXISTS = 10058  # with other settings
_STREAM_MISSING = 10059
_CONSUMER_MISSING = 10014
_TOO_FEW_SERVERS = frozenset({10005, 10074})  # no peers to place it on; not a cluster
SECOND_NS = 1_000_000_000
WORKERS = 8
_MAX_WAITING = 8192  # pull requests that a consumer holds: one per rollout or policy process


def stream_config(row: Row) -> dict[str, Any]:
    """JetStream's form of a row, but for what `_by_server` adds: there, what a stream has is right."""
    if row.mirror is not None:
        return _mirror_config(row, row.mirror)
    config: dict[str, Any] = {
        "name": row.stream,
        "subjects": [*row.subjects, *row.parts],
        "retention": "workqueue" if row.queue else "limits",
        **({} if row.memory else {"storage": "file"}),
        "discard": "new" if row.push_back else "old",
        "discard_new_per_subject": row.queue and row.max_per_subject > 0,
        "max_msgs_per_subject": row.max_per_subject or -1,
        "max_bytes": row.max_bytes or -1,
        "max_msg_size": row.max_message_bytes or -1,
        "max_age": int(row.max_age_s * SECOND_NS),
        "duplicate_window": int(row.duplicate_window_s * SECOND_NS),
        **_replicas(row),
        "allow_direct": True,
        "allow_atomic": row.atomic,
        "allow_msg_ttl": row.message_ttl,
    }
    if row.news:
        config["republish"] = _republished(row)
    if row.marker_ttl_s:
        config["subject_delete_marker_ttl"] = int(row.marker_ttl_s * SECOND_NS)
        config["allow_rollup_hdrs"] = True
    return config


def _replicas(row: Row) -> dict[str, Any]:
    return {"num_replicas": row.replicas} if row.replicas else {}


def _by_server(row: Row, cluster: str) -> dict[str, Any]:
    """How many servers keep it, and where.

    In a cluster nothing is kept in memory: a server that comes back with an empty one has no vote until the others have
    filled it, so that the next loss would leave a stream without a majority although two servers are there.
    """
    return {
        "num_replicas": row.replicas or (CLUSTER_REPLICAS if cluster else 1),
        "storage": "memory" if row.memory and not cluster else "file",
    }


def _republished(row: Row) -> dict[str, Any]:
    return {"src": ">", "dest": row.news, "headers_only": True}


def _mirror_config(row: Row, mirror: Mirror) -> dict[str, Any]:
    return {
        "name": row.stream,
        "storage": "file",
        "mirror": {
            "name": mirror.stream,
            "external": {"api": f"$JS.{HUB_DOMAIN}.API", "deliver": ""},
            "subject_transforms": [{"src": mirror.subjects, "dest": mirror.subjects_here}],
        },
        "max_msgs_per_subject": row.max_per_subject or -1,
        **_replicas(row),
        "allow_direct": True,
        "allow_msg_ttl": row.message_ttl,
        **({"republish": _republished(row)} if row.news else {}),
    }


async def ensure(session: Session, topology: Topology) -> list[str]:
    """Idempotent; returns the streams that were missing.

    Raises BusError for a stream with other settings, or what `Session.request` raises.
    """

    made: list[str] = []

    async def ensure_row(row: Row) -> None:
        if await _ensure_stream(session, row):
            made.append(row.stream)
        for consumer in row.consumers:
            await _ensure_consumer(session, row.stream, consumer, topology.limits)

    await in_parallel(topology.rows, ensure_row, workers=WORKERS)
    return made


async def _ensure_stream(session: Session, row: Row) -> bool:
    """Whether it had to be made."""
    wanted = stream_config(row)
    found = await _found(session, f"STREAM.INFO.{row.stream}", _STREAM_MISSING)
    missing = found is None
    if found is None:
        await _create_stream(session, row, wanted)
        found = await _found(session, f"STREAM.INFO.{row.stream}", _STREAM_MISSING) or {}
    check_same(row.stream, wanted, found)
    return missing


def check_same(stream: str, wanted: dict[str, Any], found: dict[str, Any]) -> None:
    """Raises BusError if a stream has other settings than it should."""
    different = _different(wanted, found)
    if different:
        has = ", ".join(f"{key}={found.get(key)}" for key in different)
        expected = ", ".join(str(value) for value in different.values())
        raise BusError(
            f"stream {stream} has {has}, expected {expected}: [bus] was changed, or an earlier version began the run; "
            f"put the old settings back, finish it with that version, or begin anew (`up --fresh`, or another run.name)"
        )


async def _create_stream(session: Session, row: Row, wanted: dict[str, Any]) -> None:
    by_server = _by_server(row, session.cluster)
    try:
        await session.api(f"STREAM.CREATE.{row.stream}", {**wanted, **by_server})
    except DeniedError as exc:
        raise DeniedError(f"stream {row.stream} isn't there, and {exc}; start the run with `astraflow up`") from exc
    except ApiError as exc:
        if exc.err_code in NO_STORAGE:
            raise BusError(
                f"nats-server has no room for stream {row.stream} (max_bytes={row.max_bytes}): raise its "
                f"max_file_store, or lower the bounds in [bus]"
            ) from exc
        if exc.err_code in _TOO_FEW_SERVERS and (replicas := by_server["num_replicas"]) > 1:
            where = f"cluster {session.cluster}" if session.cluster else "this server, which is in no cluster,"
            raise BusError(
                f"stream {row.stream} is to be kept by {replicas} servers, and {where} has too few that answer: "
                f"{exc.description}; start the others, or set bus.replicas = 1 and lose the run with its server"
            ) from exc
        if exc.err_code != _STREAM_EXISTS:  # somebody else has just created it
            raise


async def _found(session: Session, request: str, missing: int) -> dict[str, Any] | None:
    """The settings of a stream or consumer as the server has them; None if there is none."""
    try:
        config: dict[str, Any] = (await session.api(request))["config"]
    except ApiError as exc:
        if exc.err_code != missing:
            raise
        return None
    return config


def _different(wanted: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in wanted.items() if found.get(key, _absent(value)) != value}


def _absent(value: Any) -> Any:
    """What a setting is that the server leaves out of its answer."""
    return type(value)()


async def _ensure_consumer(session: Session, stream: str, consumer: Consumer, limits: Limits) -> None:
    """Create or update a shared durable pull consumer; redelivery without end, the receiver counts."""
    config = {
        "name": consumer.name,
        "durable_name": consumer.name,
        "filter_subject": consumer.subject,
        "ack_policy": "explicit",
        "ack_wait": int(limits.ack_wait_s * SECOND_NS),
        "max_deliver": -1,
        "max_ack_pending": -1,
        "max_waiting": _MAX_WAITING,
    }
    found = await _found(session, f"CONSUMER.INFO.{stream}.{consumer.name}", _CONSUMER_MISSING)
    if found is None or _different(config, found):
        await session.api(
            f"CONSUMER.CREATE.{stream}.{consumer.name}.{consumer.subject}", {"stream_name": stream, "config": config}
        )
