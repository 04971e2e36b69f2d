"""Below the bus: messages that no bus would store, and what the server says of a queue."""

from astraflow.bus import NatsBus


async def store_raw(bus: NatsBus, subject: str, data: bytes, *, msg_id: str = "") -> None:
    """Store bytes as they are."""
    session = await bus.link.session()
    await session.request(subject, data, headers={"Nats-Msg-Id": msg_id} if msg_id else None)


async def someone_waits(bus: NatsBus, stream: str, consumer: str) -> bool:
    """Whether a fetch is open at the server, with nothing to give it."""
    info = await (await bus.link.session()).api(f"CONSUMER.INFO.{stream}.{consumer}")
    return bool(info["num_waiting"])
