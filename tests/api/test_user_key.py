"""With a user's key on a secured server everything works that `af.connect` offers."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

import astraflow as af
from astraflow.bus import Bus, topology_of, wiring
from astraflow.messages import (
    Control,
    Decision,
    DecisionKind,
    Event,
    Head,
    Metrics,
    SampleBatch,
    Submission,
)
from astraflow.messages.metric_names import DATAFLOW
from astraflow.messages.roles import Role
from tests.actors.run_in_progress import CONFIG, RECORD, member
from tests.bus.secured import Secured, secured_server
from tests.support import make_episode


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[Secured]:
    async with secured_server(tmp_path / "bus", topology_of(CONFIG)) as running:
        yield running


def connected(secured: Secured, tmp_path: Path) -> Any:
    """As on a machine that has nothing but the user's key."""
    keys = tmp_path / "keys"
    keys.mkdir()
    for name in ("user.nk", "ca.pem"):
        (keys / name).write_bytes((secured.folder.credentials["demo"] / name).read_bytes())
    return af.connect(secured.server.url, run="demo", credentials_dir=keys, ca_file=keys / "ca.pem")


def batch(number: int) -> SampleBatch:
    return SampleBatch(policy="solver", number=number, group_ids=(), samples=(), train_step=number)


async def emit(bus: Bus, number: int) -> None:
    """As dataflow does it."""
    await bus.publish(bus.topology.sample("solver"), batch(number), msg_id=f"b{number}")
    await bus.metrics(Metrics(kind=DATAFLOW, at=0.0, policy="solver", batch=number, values={}))


async def test_every_iterator_reads_what_is_there_and_what_comes(secured: Secured, tmp_path: Path) -> None:
    issue = Decision(kind=DecisionKind.ISSUE, source="train", epoch=0, index=0, group_id="g", group_size=1)
    head = Head(policy="solver", version=3, step=3, epoch=1, manifest_sequence=1, full_manifest_sequence=1)
    async with (
        secured.bus(Role.ADMIN) as admin,
        secured.bus(Role.DATAFLOW) as dataflow,
        secured.bus(Role.ROLLOUT) as rollout,
        asyncio.timeout(60),
    ):
        await admin.kv.put(wiring.RUN.key(), RECORD)
        await admin.kv.put(wiring.HEAD.key("solver"), head)
        await dataflow.kv.put(wiring.MEMBER.key("dataflow-n-0"), member("dataflow-n-0", "dataflow"))
        await dataflow.publish(dataflow.topology.decision(), issue, msg_id="d")
        await rollout.publish(rollout.topology.episode("sums"), make_episode(env="sums", source="train"), msg_id="e")
        await dataflow.event("info", "hello", "here")
        await emit(dataflow, 1)
        async with connected(secured, tmp_path) as run:
            assert await first(run.tasks(start="first")) == issue
            assert (await first(run.episodes(start="first"))).env == "sums"
            assert await first(run.versions("solver")) == head
            assert (await first(run.metrics(start="first"))).kind == DATAFLOW
            assert (await first(run.events(start="first"))).text == "here"
            assert (await first(run.members())).actor == "dataflow-n-0"
            async with (
                aclosing(run.samples("solver", start="first")) as batches,
                aclosing(run.samples("solver")) as new,
                asyncio.TaskGroup() as group,
            ):
                assert await anext(batches) == batch(1)
                coming = [group.create_task(_next(each)) for each in (batches, new)]
                await emit_until(dataflow, lambda: all(each.done() for each in coming))
                assert coming[0].result() == batch(2)
                assert coming[1].result().number >= 2


async def _next(batches: AsyncGenerator[SampleBatch, None]) -> SampleBatch:
    return await anext(batches)


async def emit_until(bus: Bus, done: Callable[[], bool]) -> None:
    """Batch after batch: a reader of what is new begins when it begins."""
    number = 2
    while not done():
        await emit(bus, number)
        number += 1


async def first(entries: Any) -> Any:
    async with aclosing(entries):
        return await anext(entries)


async def test_tasks_and_orders_reach_dataflow_and_its_answer_comes_back(secured: Secured, tmp_path: Path) -> None:
    async with (
        secured.bus(Role.ADMIN) as admin,
        secured.bus(Role.DATAFLOW) as dataflow,
        asyncio.timeout(60),
        asyncio.TaskGroup() as group,
    ):
        await admin.kv.put(wiring.RUN.key(), RECORD)
        answering = group.create_task(answer(dataflow))
        async with connected(secured, tmp_path) as run:
            await run.submit("sums", {"question": "q" * (2 << 20)})  # large enough to be split
            await run.pause(within_s=30)
            await run.resume(within_s=30)
            await run.evaluate("held-out", within_s=30)
            await run.stop(within_s=30)
            with pytest.raises(af.ConfigError, match="no such knob"):
                await run.set("sources.train.knob", 1, within_s=30)
        answering.cancel()
        topology = dataflow.topology
        submitted = await dataflow.logs.next(topology.submissions, topology.submission(), start=1)
        assert submitted is not None
        assert isinstance(submitted.message, Submission)
        assert len(submitted.message.payload["question"]) == 2 << 20


async def answer(bus: Bus) -> None:
    """Orders as dataflow answers them."""
    async for entry in bus.logs.read(bus.topology.controls):
        order = entry.message
        assert isinstance(order, Control)
        refusal = "no such knob" if order.kind == "set" else ""
        fields = {"order": order.order, "refusal": refusal}
        await bus.publish(
            bus.topology.event("info"), Event(level="info", name="order", text="", fields=fields), msg_id=order.order
        )
