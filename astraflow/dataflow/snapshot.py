"""What dataflow must remember besides its logs: one struct, msgpack, versioned.

It holds places in the EPISODES log, not episodes. Invariant: fields are only ever appended, with a default.
"""

import msgspec

from astraflow.dataflow.evals import EvalState
from astraflow.dataflow.feedback import PendingResult
from astraflow.dataflow.groups import OpenGroup
from astraflow.dataflow.policy_flow import FlowState
from astraflow.dataflow.stages import StageState
from astraflow.dataflow.submissions import Waiting
from astraflow.errors import MessageError

SNAPSHOT_SCHEMA = 1


class Cohort(msgspec.Struct):
    """The newest cohort of deterministic mode; append fields only."""

    id: str  # "" = none
    size: int  # tasks
    issued: int = 0  # tasks
    first: int = 0  # ordinal of its first group


class Snapshot(msgspec.Struct, kw_only=True):
    """The whole state of a `DataflowCore`."""

    schema: int = SNAPSHOT_SCHEMA
    incarnation: str
    cursor: int = 0  # last EPISODES sequence that was taken in
    ordinal: int = 0  # groups issued
    issued: dict[str, int] = {}  # per source, positions behind it, skipped ones included
    clocks: dict[str, float] | None = None  # per source, of the mixer; None = they haven't started
    groups: list[OpenGroup] = []
    closed: list[tuple[str, int, list[tuple[int, int]]]] = []  # source, epoch, half-open ranges of indices
    flows: dict[str, FlowState] = {}
    evals: dict[str, EvalState] = {}
    notes: list[str] = []
    unknown: int = 0  # records of tasks that this run never issued
    cohort: Cohort = msgspec.field(default_factory=lambda: Cohort("", 0))
    selects: dict[str, StageState] = {}  # per source
    results: list[PendingResult] = []
    waiting: dict[str, list[Waiting]] = {}  # submissions by environment
    submitted_to: int = 0  # last SUBMIT sequence that was taken in
    controlled_to: int = 0  # last CONTROL sequence that was carried out
    paused: bool = False
    submitted: dict[str, list[int]] = {}  # by environment, indices of the groups that were submitted lately
    orders: dict[str, str] = {}  # id of an order that was taken in lately → why it was refused; "" = it was done


class _Head(msgspec.Struct):
    schema: int


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The snapshot as it is stored."""
    return msgspec.msgpack.encode(snapshot)


def decode_snapshot(data: bytes) -> Snapshot:
    """What `encode_snapshot` wrote. Raises MessageError if it is damaged or from a newer version."""
    try:
        schema = msgspec.msgpack.decode(data, type=_Head).schema
        if schema > SNAPSHOT_SCHEMA:
            raise MessageError(
                f"dataflow's snapshot has schema {schema}, this process reads up to {SNAPSHOT_SCHEMA}; "
                f"upgrade astraflow here"
            )
        return msgspec.msgpack.decode(data, type=Snapshot)
    except msgspec.MsgspecError as exc:
        raise MessageError(f"dataflow's snapshot of {len(data)} bytes can't be decoded: {exc}") from exc
