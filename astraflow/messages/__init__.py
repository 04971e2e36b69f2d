"""Wire structs: frozen, append-only, msgpack. The lowest layer; it knows no bus and no torch.

arrays        arrays on the wire
codec         encode and decode
control       membership, progress, dataflow's decisions, events and metrics
episodes      tasks and what comes of them
generation    the supervised token stream between a requester and a policy replica
ids           names of tasks and groups, the seeds that go with them, and closed ids kept as ranges
metric_names  every metric and gauge that a run reports
metrics_page  writes docs/metrics.md
mixing        splitmix64's finaliser on whole arrays
roles         who works in a run
samples       what a trainer consumes
weights       weight versions
    message       what every message is
    registry      the types of messages by the name that an envelope has for them
    sampling      how a policy samples, and which of it can be trained
    printable     texts that people will read, made safe to print
"""

from astraflow.messages.arrays import Array, array_of
from astraflow.messages.codec import SCHEMA_VERSION, Decoded, Envelope, decode, encode, encode_envelope
from astraflow.messages.control import (
    CONTROL_EVENT,
    EVENT_LEVELS,
    FINISHED,
    PROCESS_FAILED,
    STOPPED,
    Control,
    ControlKind,
    Decision,
    DecisionKind,
    Drain,
    Event,
    GroupClosed,
    Lease,
    Ledger,
    Member,
    MemberState,
    Metrics,
    Progress,
    Region,
    RunRecord,
    SnapshotPointer,
    Submission,
    goal,
    is_goal,
)
from astraflow.messages.episodes import TRAINABLE_REASONS, Episode, Reason, Spoken, Task, TaskRef, Trajectory, Turn
from astraflow.messages.generation import (
    ChunkKind,
    GenCancel,
    GenChunk,
    GenRequest,
    RequestFault,
    Sampling,
    TemperatureSpan,
    VersionSpan,
)
from astraflow.messages.message import Message
from astraflow.messages.registry import MESSAGE_TYPES
from astraflow.messages.samples import Sample, SampleBatch
from astraflow.messages.weights import (
    FileEntry,
    Head,
    Manifest,
    PartRef,
    Place,
    Probe,
    TensorEntry,
    VersionKind,
    VersionStep,
)

__all__ = [
    "CONTROL_EVENT",
    "EVENT_LEVELS",
    "FINISHED",
    "MESSAGE_TYPES",
    "PROCESS_FAILED",
    "SCHEMA_VERSION",
    "STOPPED",
    "TRAINABLE_REASONS",
    "Array",
    "ChunkKind",
    "Control",
    "ControlKind",
    "Decision",
    "DecisionKind",
    "Decoded",
    "Drain",
    "Envelope",
    "Episode",
    "Event",
    "FileEntry",
    "GenCancel",
    "GenChunk",
    "GenRequest",
    "GroupClosed",
    "Head",
    "Lease",
    "Ledger",
    "Manifest",
    "Member",
    "MemberState",
    "Message",
    "Metrics",
    "PartRef",
    "Place",
    "Probe",
    "Progress",
    "Reason",
    "Region",
    "RequestFault",
    "RunRecord",
    "Sample",
    "SampleBatch",
    "Sampling",
    "SnapshotPointer",
    "Spoken",
    "Submission",
    "Task",
    "TaskRef",
    "TemperatureSpan",
    "TensorEntry",
    "Trajectory",
    "Turn",
    "VersionKind",
    "VersionSpan",
    "VersionStep",
    "array_of",
    "decode",
    "encode",
    "encode_envelope",
    "goal",
    "is_goal",
]
