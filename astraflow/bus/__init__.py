"""The bus: NATS JetStream behind a small surface. The only package that imports nats, and only when it connects.

`interface.py` says what an actor may rely on; `bus.py` is that on a nats-server.
"""

from astraflow.bus.bus import NatsBus
from astraflow.bus.entries import Cursor, DeadLetter, KvEntry, KvUpdate, LogEntry, LogState, PublishAck
from astraflow.bus.faults import ApiError, UnreadableValueError
from astraflow.bus.interface import Bus, CoreFeed, Delivery, WorkQueue
from astraflow.bus.leaf import HUB_DOMAIN, HubDoor, LeafDoor
from astraflow.bus.names import Kind
from astraflow.bus.server import EmbeddedServer
from astraflow.bus.topology import Topology, topology_of
from astraflow.bus.trust import BusOptions
from astraflow.bus.wiring import Consumer, Limits, Row
from astraflow.messages.roles import Role as BusRole  # its name in callers that are older than `Role`

__all__ = [
    "HUB_DOMAIN",
    "ApiError",
    "Bus",
    "BusOptions",
    "BusRole",
    "Consumer",
    "CoreFeed",
    "Cursor",
    "DeadLetter",
    "Delivery",
    "EmbeddedServer",
    "HubDoor",
    "Kind",
    "KvEntry",
    "KvUpdate",
    "LeafDoor",
    "Limits",
    "LogEntry",
    "LogState",
    "NatsBus",
    "PublishAck",
    "Row",
    "Topology",
    "UnreadableValueError",
    "WorkQueue",
    "topology_of",
]
