"""Membership, progress, dataflow's decisions, events and metrics."""

from enum import StrEnum
from typing import Any

from astraflow.messages.episodes import TaskRef
from astraflow.messages.ids import GroupKey
from astraflow.messages.message import Message
from astraflow.messages.weights import PartRef, VersionStep


class MemberState(StrEnum):
    """joining → (standby →) catching_up → ready → draining → gone; any state may end in gone."""

    JOINING = "joining"
    STANDBY = "standby"  # another actor holds the lease
    CATCHING_UP = "catching_up"
    READY = "ready"
    DRAINING = "draining"
    GONE = "gone"


class Member(Message, frozen=True, kw_only=True):
    """One actor's presence. KV key member.<actor>, with a TTL, renewed from a thread."""

    actor: str  # unique name: <role>-<node>-<k>
    role: str
    node: str
    incarnation: str
    pid: int
    state: MemberState
    policy: str = ""
    since: float = 0.0  # unix seconds of the last change of state, by the actor's clock: see state_s
    waits_for: str = ""  # a sentence; "" = busy
    waits_since: float = 0.0  # unix seconds, by the actor's clock: see waits_s
    loop_lag_s: float = 0.0
    stuck_frame: str = ""  # where the event loop is blocked, if it is
    gauges: dict[str, float] = {}
    last_error: str = ""
    unserved: dict[str, str] = {}  # environments that it can't run, or roles that a node can't have: why
    roles: tuple[str, ...] = ()  # of a node: what it has or is starting, like --role, e.g. "policy:solver"
    blocked: str = ""  # what it can't store on the bus, and why; "" = nothing
    blocked_since: float = 0.0  # unix seconds, by the actor's clock: see blocked_s
    problems: tuple[str, ...] = ()  # what keeps the run from getting anywhere, as far as it can see
    about: str = ""  # what it is made of, where the run file doesn't say: a replica's server, how it gets weights
    state_s: float = -1.0  # how long it had been in this state when it wrote this; -1 = not told, as in the next two
    waits_s: float = -1.0
    blocked_s: float = -1.0


class Region(Message, frozen=True, kw_only=True):
    """A region that takes part over a leaf link, as the hub last heard of it. KV key region.<region>.

    Its keeper's member record, which expires, says whether the link is there; this one says what was behind it.
    """

    region: str
    seen_at: float  # unix seconds, by the keeper's clock: for people there
    members: tuple[str, ...] = ()  # actors that are there
    tasks: int = 0  # brought there, without a record at the hub yet
    left: bool = False  # it said goodbye


class Drain(Message, frozen=True, kw_only=True):
    """An order to leave. KV key drain.<target>, with a TTL; the target's node carries it out."""

    target: str  # an actor's name or a node's
    requested_at: float  # unix seconds
    requested_by: str = ""


class Lease(Message, frozen=True, kw_only=True):
    """Who may write a log that has one writer. KV key lease.<name>; every renewal writes it anew."""

    holder: str  # incarnation; "" = released
    epoch: int
    actor: str = ""  # the holder's name
    process: str = ""  # which process of which machine that is, see actors/base/process_identity.py; "" = unknown
    lease_s: float = 0.0  # the holder is gone when it has not renewed for this long


class Progress(Message, frozen=True, kw_only=True):
    """How far a trainer is. KV key progress.<policy>."""

    policy: str
    consumed: int  # number of the last batch it finished, trained or skipped
    step: int  # optimizer steps done
    version: int
    epoch: int
    durable_batch: int = 0  # last batch inside a durable checkpoint
    durable_sequence: int = 0  # in SAMPLES, of the last batch in the oldest checkpoint kept
    recent: tuple[VersionStep, ...] = ()
    finished: bool = False
    trained_tasks: int = 0  # set when finished: tasks trained in the surviving lineage
    trained_digest: str = ""  # sha256 hex over their sorted ids, one a line


class DecisionKind(StrEnum):
    ISSUE = "issue"  # a group's tasks are issued
    REISSUE = "reissue"  # a task without a record by its deadline gets attempt + 1
    CLOSE = "close"  # the group is closed without its missing members


class Decision(TaskRef, Message, frozen=True, kw_only=True):
    """What dataflow decided, appended before it acts."""

    kind: DecisionKind
    decided_at: float = 0.0
    reason: str = ""
    min_versions: dict[str, int] = {}
    cohort_id: str = ""
    cohort_size: int = 0
    position: int = -1  # of the group among its source's tasks; -1 = the next one
    extra: int = 0  # members of the group that are redundant
    refused: int = 0  # tasks in a row that the source's selector refused, this one the first; 0 = it was chosen

    @property
    def key(self) -> GroupKey:
        """The group that it is about."""
        return GroupKey(self.source, self.epoch, self.index)


class GroupClosed(Message, frozen=True, kw_only=True):
    """No task of the group is needed any more. KV key closed.<source>.<epoch>.<index>, with a TTL."""

    group_id: str
    reason: str


class Submission(Message, frozen=True, kw_only=True):
    """A task that a user wants played and trained, in a group of its own. Subject submit."""

    env: str
    payload: dict[str, Any]  # what the environment needs; JSON-like
    group_size: int = 0  # 0 = as the environment's sources have it


class ControlKind(StrEnum):
    PAUSE = "pause"  # issue no more tasks; what runs goes on
    RESUME = "resume"
    EVALUATE = "evaluate"  # begin a round of the evaluation `name`
    STOP = "stop"  # end the run everywhere; `up` or `submit` continues it
    SET = "set"  # change the data algorithms' knob `name` to `value`


PROCESS_FAILED = "process-failed"
"""Name of the event of a process that its node doesn't start again; field `ends` = the node ends for it."""

CONTROL_EVENT = "control"
"""Name of the event that answers an order: its fields have the order's id, and `refusal`, "" = it is carried out."""


class Control(Message, frozen=True, kw_only=True):
    """An order to dataflow. Subject control."""

    kind: ControlKind
    name: str = ""
    value: Any = None
    order: str = ""  # id of this order, for who waits until it is carried out: an event has it


class SnapshotPointer(Message, frozen=True, kw_only=True):
    """Where the last durable snapshot is. KV key snapshot.dataflow. No parts: a dataflow started and has saved none."""

    size_bytes: int
    parts: tuple[PartRef, ...]
    epoch: int
    saved_at: float


class Ledger(Message, frozen=True, kw_only=True):
    """What became of every issued task, counted by reason. KV key ledger.<policy>."""

    policy: str
    counts: dict[str, int]  # e.g. issued, emitted, zero-advantage, truncated, infra, late, surplus, stale, expired
    epoch: int = 0  # lease epoch of the dataflow that counted
    notes: tuple[str, ...] = ()  # sentences on the last groups that weren't trained, oldest first; at most ten


EVENT_LEVELS = ("info", "warning", "error")


class Event(Message, frozen=True, kw_only=True):
    """Something a person may want to know. Subject event.<level>."""

    level: str  # info | warning | error
    name: str
    text: str
    actor: str = ""
    at: float = 0.0
    fields: dict[str, Any] = {}


class Metrics(Message, frozen=True, kw_only=True):
    """Named numbers at one point. Subject metric.<kind>."""

    kind: str  # train | rollout | eval | dataflow | weights
    at: float
    values: dict[str, float]
    policy: str = ""
    step: int = -1
    version: int = -1
    batch: int = -1
    lineage: int = 0  # lease epoch: a step that was done twice differs by it
    labels: dict[str, str] = {}


STOPPED = "stopped"  # a person ended it
FINISHED = "finished"
_GOAL = "goal reached: "


def goal(sentence: str) -> str:
    """What `RunRecord.stop_requested` says of a run whose `stop_when` is met."""
    return f"{_GOAL}{sentence}"


def is_goal(stop_requested: str) -> bool:
    """Whether a run ended because its `stop_when` was met."""
    return stop_requested.startswith(_GOAL)


class RunRecord(Message, frozen=True, kw_only=True):
    """What a joining node must know. KV key run."""

    name: str
    incarnation: str  # uuid; part of every id
    config_json: bytes  # the resolved run file
    created_at: float
    stop_requested: str = ""  # why the run is to end, STOPPED, FINISHED or a goal; "" = go on
