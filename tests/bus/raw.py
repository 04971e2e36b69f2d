"""Below the bus: messages that no bus would store, and what the server says of a queue."""

from astraflow.bus import Bus, NatsBus
from astraflow.bus.memory import MemoryBus
from astraflow.bus.memory.stream import NewMessage


async def store_raw(bus: Bus, subject: str, data: bytes, *, msg_id: str = "") -> None:
    """Store bytes as they are."""
    headers = {"Nats-Msg-Id": msg_id} if msg_id else {}
    if isinstance(bus, MemoryBus):
        stream = bus.server.there(bus.topology.row_of(subject).stream)
        stream.append([NewMessage(subject=subject, data=data, headers=headers)])
        return
    assert isinstance(bus, NatsBus)
    session = await bus.link.session()
    await session.request(subject, data, headers=headers or None)


async def someone_waits(bus: NatsBus, stream: str, consumer: str) -> bool:
    """Whether a fetch is open at the server, with nothing to give it."""
    info = await (await bus.link.session()).api(f"CONSUMER.INFO.{stream}.{consumer}")
    return bool(info["num_waiting"])
