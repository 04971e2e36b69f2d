"""The bus: NATS JetStream behind a small surface. The only package that imports nats, and only when it connects."""

from astraflow.bus.bus import Bus
from astraflow.bus.core import CoreFeed
from astraflow.bus.deadletters import DeadLetter
from astraflow.bus.kv import KvEntry, KvUpdate
from astraflow.bus.leaf import HUB_DOMAIN, HubDoor, LeafDoor
from astraflow.bus.log import Cursor, LogEntry
from astraflow.bus.publish import PublishAck
from astraflow.bus.queue import Delivery, WorkQueue
from astraflow.bus.reader import LogState
from astraflow.bus.rights import BusRole
from astraflow.bus.rows import Consumer, Kind, Limits, Row
from astraflow.bus.server import EmbeddedServer
from astraflow.bus.topology import Topology, topology_of
from astraflow.bus.trust import BusOptions

__all__ = [
    "HUB_DOMAIN",
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
    "PublishAck",
    "Row",
    "Topology",
    "WorkQueue",
    "topology_of",
]
