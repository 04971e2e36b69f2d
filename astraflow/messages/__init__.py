"""Wire structs: frozen, append-only, msgpack. The lowest layer; it knows no bus and no torch."""

from astraflow.messages.arrays import Array, array_of
from astraflow.messages.codec import MESSAGE_TYPES, SCHEMA_VERSION, Decoded, Envelope, Message, decode, encode
from astraflow.messages.control import (
    Decision,
    DecisionKind,
    Drain,
    Event,
    Lease,
    Ledger,
    Member,
    MemberState,
    Metrics,
    Progress,
    RunRecord,
    SnapshotPointer,
)
from astraflow.messages.episodes import TRAINABLE_REASONS, Episode, Reason, Task, Trajectory, Turn
from astraflow.messages.generation import ChunkKind, GenCancel, GenChunk, GenRequest, Sampling, VersionSpan
from astraflow.messages.samples import Sample, SampleBatch
from astraflow.messages.weights import FileEntry, Head, Manifest, PartRef, Place, TensorEntry, VersionKind, VersionStep

__all__ = [
    "MESSAGE_TYPES",
    "SCHEMA_VERSION",
    "TRAINABLE_REASONS",
    "Array",
    "ChunkKind",
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
    "Progress",
    "Reason",
    "RunRecord",
    "Sample",
    "SampleBatch",
    "Sampling",
    "SnapshotPointer",
    "Task",
    "TensorEntry",
    "Trajectory",
    "Turn",
    "VersionKind",
    "VersionSpan",
    "VersionStep",
    "array_of",
    "decode",
    "encode",
]
