"""The bus: NATS JetStream behind a small surface. The only package that imports nats, and only when it connects.

    admit         whether a stored message belongs where it was found
    bus           the bus on NATS
    certificates  a certificate authority of our own and the server's certificate, for `astraflow bus --secure`
    claims        messages of any size
    cluster       nats-server's settings of a cluster
    core          core messages
    counters      what the bus counts, and which gauges people see of it
    deadletters   where messages go that can't be read
    ensure        create a run's streams and consumers, or check that they are as the table says
    entries       what is read from the bus, and what a publish answers
    feed          messages of one subscription as they come in
    interface     what an actor may rely on
    kv            the run's key-value bucket
    leaf          nats-server's settings of a leaf link
    link          the supervised connection
    log           logs
    parts         byte strings as parts of about 512 KiB on a stream, each found by its digest
    private       files that only their owner may read
    publish       publish to a stream
    queue         work queues
    reader        raw messages of a stream in order, each exactly once, across reconnects
    region_rows   the table of streams in a region away from home
    retry         ask the server until it answers
    rights        what each role may do on the bus of one run
    runs          which runs a server holds
    secure        the folder of a secured server
    server        a nats-server of our own, as a child process
    serverinfo    whether a server is one that AstraFlow can work with
    serversettings  the settings of a nats-server of our own, and what its own words say of a start that failed
    session       one life of one nats-py client
    topology      names of a run's subjects, streams, consumers and keys
    trust         who we are to the server, and why we trust it
    waits         which publishes of this process wait, since when and why
    window        a bound on bytes under way, first come first served
    docs          docs/wiring.md, made from the wiring
    names         names of a run's subjects, streams and consumers, and what may be one
    wiring        the table of the bus
    incoming      what comes in, whatever it is, can't end the connection
    orphan        a nats-server of ours whose parent is gone
    memory        a bus in memory, under the same contract as the one on NATS
    subjects      subjects and patterns
    telling       events and metrics on whichever bus

`interface.py` says what an actor may rely on; `bus.py` is that on a nats-server.
"""

from astraflow.bus.bus import NatsBus
from astraflow.bus.cluster import ClusterDoor
from astraflow.bus.entries import Cursor, DeadLetter, KvEntry, KvUpdate, LogEntry, LogState, PublishAck
from astraflow.bus.interface import Bus, CoreFeed, Delivery, WorkQueue
from astraflow.bus.leaf import HUB_DOMAIN, HubDoor, LeafDoor
from astraflow.bus.names import Kind
from astraflow.bus.server import EmbeddedServer
from astraflow.bus.topology import Topology, topology_of
from astraflow.bus.trust import BusOptions
from astraflow.bus.wiring import Consumer, Limits, Row

__all__ = [
    "HUB_DOMAIN",
    "Bus",
    "BusOptions",
    "ClusterDoor",
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
    "WorkQueue",
    "topology_of",
]
