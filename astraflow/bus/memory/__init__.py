"""A bus in memory, under the same contract as the one on NATS: for tests, and for clusters that are simulated.

`MemoryServer` stands for the nats-server, and any number of `MemoryBus` in the process share it. It runs on the one
clock, so that times to live and ack waits run on virtual time too; nothing is polled and no bus has a task of its own,
so that thousands of nodes fit into a process. What it lacks: outages, regions, rights, and other processes.

    server       streams, consumers and listeners, which all buses share: it knows bytes, no messages
    stream       one stream: messages in order, ids, bounds, times to live, who listens
    consumer     who holds which message of a work queue until when
    bus          one process's place on it
    publish      storing, and waiting for room
    parts        byte strings as parts, and messages that are too big for one
    kv           the run's key-value bucket
    log          logs
    queue        work queues
    core         messages that aren't stored
    deadletters  where messages go that can't be read
"""

from astraflow.bus.memory.bus import MemoryBus
from astraflow.bus.memory.server import MemoryServer

__all__ = ["MemoryBus", "MemoryServer"]
