"""Presence through an outage of the server."""

from pathlib import Path

from astraflow.actors.base.heartbeat import Heartbeat
from astraflow.bus import EmbeddedServer
from tests.actors.contexts import context, with_bus
from tests.support import eventually, kill


async def test_a_heartbeat_outlives_an_outage_that_is_longer_than_its_patience(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path / "nats")
    await server.start()
    again = EmbeddedServer(tmp_path / "nats", port=server.port)
    async with context(server, tmp_path, role="rollout", config=with_bus(member_ttl_s=1)) as ctx:

        async def heard(round: int) -> bool:
            entry = await ctx.bus.kv_get(f"member.{ctx.name}")
            return entry is not None and entry.message.gauges.get("round") == round

        ctx.gauge("round", 1)
        told: list[str] = []
        async with Heartbeat(ctx, server.options, tell=told.append):
            await eventually(lambda: heard(1))
            await kill(server)
            await eventually(lambda: told, within_s=20)
            ctx.gauge("round", 2)
            await again.start()
            await eventually(lambda: heard(2), within_s=20)
            await eventually(lambda: len(told) == 2)
            assert told[0].startswith("nats-server stores nothing: ")
            assert told[1] == "nats-server stores again"
    await again.stop()
