"""Servers and readers that aren't as they should be: full queues, slow readers, storms, servers that can't serve."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from astraflow.bus import Bus, BusOptions, EmbeddedServer, NatsBus, Topology, wiring
from astraflow.concurrency import Background
from astraflow.errors import BusError, ConfigError, MessageError
from astraflow.messages import Head, Ledger, SampleBatch
from tests.faultproxy import Kind, Rates, every, proxied
from tests.support import LIMIT_S, eventually, kill, make_episode, make_task, make_topology, server_with

CLIENTS = 100


async def test_who_waits_for_a_full_queue_says_for_what_and_nothing_is_lost(nats_server: EmbeddedServer) -> None:
    topology = make_topology(max_tasks=3)
    async with NatsBus.connect(nats_server.options, topology, producer="test") as bus:
        await bus.ensure()
        assert bus.waits.sentence() == ("", 0.0)
        async with (
            asyncio.TaskGroup() as group,
            bus.queues.open(topology.tasks, topology.task_consumer("math")) as queue,
        ):
            for number in range(8):
                task = make_task(str(number))
                group.create_task(bus.publish(topology.task("math"), task, msg_id=task.id, deadline_s=None))
            await eventually(lambda: "and 4 more" in bus.waits.sentence()[0])
            sentence, waited_s = bus.waits.sentence()
            assert "stream AF_test_local_TASKS is full: maximum messages per subject exceeded" in sentence
            assert "its terminal Episode is stored (read by rollout), or raise bus.max_tasks" in sentence
            assert 0 <= waited_s < 60
            seen = set()
            while len(seen) < 8:
                for delivery in await queue.fetch(1):
                    seen.add(delivery.message.id)
                    await delivery.ack()
        assert seen == {str(number) for number in range(8)}
        assert bus.waits.sentence() == ("", 0.0)


@pytest.mark.parametrize("max_payload", [32768, 65536, 262144])
async def test_big_messages_of_every_kind_fit_a_small_max_payload(
    tmp_path: Path, topology: Topology, max_payload: int
) -> None:
    async with (
        server_with(f"max_payload: {max_payload}", tmp_path) as url,
        NatsBus.connect(BusOptions(url=url), topology, producer="test") as bus,
    ):
        await bus.ensure()
        text = "x" * 500_000
        await bus.publish(topology.episode("math"), make_episode(prompt=text), msg_id="a")
        await bus.publish(topology.task("math"), make_task(payload={"text": text}), msg_id="b")
        batch = SampleBatch(policy="solver", number=1, train_step=1, group_ids=(text,), samples=())
        await bus.publish(topology.sample("solver"), batch, msg_id="c", expected_last_sequence=0)
        weights = np.random.default_rng(0).bytes(1_000_000)
        refs = await bus.parts.put(
            topology.weights("solver"), topology.weight_part("solver", 1), weights, msg_prefix="w"
        )
        assert await bus.parts.get(topology.weights("solver"), topology.weight_part("solver", 1), refs) == weights
        await bus.event("warning", "long", text)
        async with bus.queues.open(topology.tasks, topology.task_consumer("math")) as queue:
            assert (await queue.fetch(1))[0].message.payload["text"] == text
        for stream in (topology.episodes, topology.samples("solver"), topology.events):
            assert len([entry async for entry in bus.logs.read(stream, follow=False)]) == 1
        with pytest.raises(MessageError, match="fit"):
            await bus.kv.put(wiring.LEDGER.key("solver"), Ledger(policy="x" * max_payload, counts={}))
        session = await bus.link.session()
        await session.request(topology.episode("math"), b"\xc1" * (max_payload - 1000))  # unreadable
        assert [entry async for entry in bus.logs.read(topology.episodes, follow=False)]
        assert bus.counters["dead_letters.EPISODES"] == len(await bus.dead_letters.read()) == 1
        assert bus.link.reconnects == 0


async def test_a_max_payload_that_is_too_small_is_a_sentence(tmp_path: Path, topology: Topology) -> None:
    async with server_with("max_payload: 16384", tmp_path) as url:
        with pytest.raises(ConfigError, match=r"takes messages of 16384 bytes.*at least 32768; raise max_payload"):
            async with NatsBus.connect(BusOptions(url=url), topology, producer="test"):
                pass


async def test_after_a_restart_a_hundred_clients_come_back_and_streams_are_there_once(
    bus: Bus, topology: Topology, nats_server: EmbeddedServer
) -> None:
    async with asyncio.TaskGroup() as group, asyncio.timeout(LIMIT_S):
        connected, over = asyncio.Semaphore(0), asyncio.Event()
        buses: list[Bus] = []

        async def client(number: int) -> None:
            async with NatsBus.connect(nats_server.options, topology, producer=f"client-{number}") as bus:
                await bus.ensure()
                buses.append(bus)
                connected.release()
                await over.wait()

        for number in range(CLIENTS):
            group.create_task(client(number))
        for _ in range(CLIENTS):
            await connected.acquire()
        await kill(nats_server)
        await eventually(lambda: not any(bus.link.up.is_set() for bus in buses))
        await nats_server.start()
        await eventually(lambda: all(bus.link.up.is_set() for bus in buses))
        async with asyncio.TaskGroup() as publishing:
            for bus in buses:
                publish = bus.publish(topology.episode("math"), make_episode(), msg_id=bus.producer)
                publishing.create_task(publish)
        assert (await buses[0].logs.state(topology.episodes)).messages == CLIENTS
        assert {bus.link.reconnects for bus in buses} == {1}
        info = await (await buses[0].link.session()).api("INFO")
        assert info["streams"] == len(topology.rows)
        over.set()


async def test_a_reader_that_stops_reading_is_cut_off_alone_and_comes_back(tmp_path: Path, topology: Topology) -> None:
    limits = 'max_pending: 1048576\nwrite_deadline: "1s"'
    async with (
        server_with(limits, tmp_path) as url,
        NatsBus.connect(BusOptions(url=url), topology, producer="fast") as fast,
        proxied(urlsplit(url).port or 0, seed=1) as proxy,
        NatsBus.connect(BusOptions(url=proxy.url), topology, producer="slow") as slow,
    ):
        await fast.ensure()
        subject = f"{topology.reply('node')}.1"
        async with slow.core.subscribe(subject) as feed:
            proxy.reading.clear()  # as if the process were stopped: its socket fills up
            big = make_episode(prompt="x" * 200_000)
            while "Slow Consumer" not in (tmp_path / "log").read_text():
                await fast.core.publish(subject, big)
                await asyncio.sleep(0)
            proxy.reading.set()

            async def say_after() -> None:  # until it is heard: what comes while a reader is away is not for it
                while True:
                    await fast.core.publish(subject, make_episode("after"))
                    await asyncio.sleep(0.05)

            async with asyncio.timeout(LIMIT_S), Background() as background:
                background.start(say_after())
                while (await anext(feed)).message.task_id != "after":
                    pass
            assert slow.link.reconnects >= 1
            assert fast.link.reconnects == 0


async def test_a_watch_that_hears_no_news_misses_nothing(nats_server: EmbeddedServer, topology: Topology) -> None:
    async with (
        proxied(nats_server.port, seed=1) as proxy,
        NatsBus.connect(BusOptions(url=proxy.url, token=nats_server.token), topology, producer="deaf") as bus,
    ):
        await bus.ensure()
        watch = bus.kv.watch(wiring.HEAD.prefix)
        assert (await anext(watch)).key == ""
        proxy.rates = every(Rates(drop=1.0), Kind.NEWS)
        for version in range(3):
            head = Head(
                policy=f"p{version}", version=version, step=0, epoch=1, manifest_sequence=1, full_manifest_sequence=1
            )
            await bus.kv.put(wiring.HEAD.key(f"p{version}"), head)
        async with asyncio.timeout(LIMIT_S):
            assert {(await anext(watch)).message.version for _ in range(3)} == {0, 1, 2}
        assert proxy.counts["news dropped"] == 3
        await watch.aclose()


async def test_a_server_without_jetstream_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astraflow.bus.serverinfo.READY_WITHIN_S", 0.5)
    async with server_with("", tmp_path, jetstream=False) as url:
        with pytest.raises(BusError, match=r"has no JetStream.*start it with `nats-server -js"):
            async with NatsBus.connect(BusOptions(url=url), make_topology(), producer="test"):
                pass


async def test_a_server_that_is_too_old_is_a_sentence(nats_server: EmbeddedServer) -> None:
    async with _claiming_to_be_old(nats_server) as port:
        options = BusOptions(url=f"nats://127.0.0.1:{port}", token=nats_server.token)
        with pytest.raises(BusError, match=r"is version 2\.9\.25, AstraFlow needs 2\.12 or newer; upgrade it"):
            async with NatsBus.connect(options, make_topology(), producer="test"):
                pass


@asynccontextmanager
async def _claiming_to_be_old(server: EmbeddedServer) -> AsyncIterator[int]:
    """The port of a proxy through which the server looks like version 2.9.25."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(re.sub(rb'"version":"[^"]+"', b'"version":"2.9.25"', data))
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, downstream = await asyncio.open_connection(server.host, server.port)
        async with asyncio.TaskGroup() as group:
            group.create_task(copy(upstream, writer))
            group.create_task(copy(reader, downstream))

    proxy = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield proxy.sockets[0].getsockname()[1]
    finally:
        proxy.close()
