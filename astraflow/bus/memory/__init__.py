"""A bus in memory, under the same contract as the one on NATS: for tests, and for clusters that are simulated.

`MemoryServer` stands for the nats-server, and any number of `MemoryBus` in the process share it. It runs on the one
clock, so that times to live and ack waits run on virtual time too; nothing is polled and no bus has a task of its own,
so that thousands of nodes fit into a process. What it lacks: outages, regions, rights, and other processes.

    stream.py, consumer.py, server.py    what a server has: bytes, no messages
    publish.py, parts.py                 storing, whole or split
    kv.py, log.py, queue.py, core.py     the parts of the contract
"""

from astraflow.bus.memory.bus import MemoryBus
from astraflow.bus.memory.server import MemoryServer

__all__ = ["MemoryBus", "MemoryServer"]
