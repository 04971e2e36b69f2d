"""The raw limit: plain nats-py moves the messages of `pipeline.py` through the same hops, and nothing else.

Four processes (dataflow, rollout, policy, trainer) and a nats-server with the embedded server's settings, every stored
message synced to disk. Per trajectory: publish a task → fetch, publish a request → fetch, ack, send the replies →
publish an episode, ack the task → read it; per batch: publish the samples in parts → read them → publish the progress,
which lets the next batch of tasks out. Streams have the storage, retention and duplicate window of ours, stored
messages carry ids, logs are read by nats-py's ordered consumers, each process runs on uvloop. Number and size of the
messages are those that the whole path was seen to send. No AstraFlow code runs in the four processes: nothing is
encoded, decoded, decided, recorded, retried or snapshot, and there are no weights and no supervisor.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import nats
import uvloop
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, RetentionPolicy, StorageType, StreamConfig
from processes import cpu_s

if TYPE_CHECKING:  # its start only; the processes of the raw limit load no AstraFlow
    from astraflow.bus import EmbeddedServer

ROLES = ("trainer", "policy", "rollout", "dataflow")
ID_BYTES = 16  # at the head of each payload
DUPLICATE_WINDOW_S = 600.0
_QUEUE = RetentionPolicy.WORK_QUEUE
STREAMS = (
    StreamConfig(name="TASKS", subjects=["raw.task"], retention=_QUEUE, storage=StorageType.FILE),
    StreamConfig(name="GEN", subjects=["raw.request"], retention=_QUEUE, storage=StorageType.MEMORY),
    StreamConfig(name="EPISODES", subjects=["raw.episode"], storage=StorageType.FILE),
    StreamConfig(name="SAMPLES", subjects=["raw.sample"], storage=StorageType.FILE),
    StreamConfig(name="PROGRESS", subjects=["raw.progress"], storage=StorageType.FILE, max_msgs_per_subject=1),
)


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is moved. Sizes are payload bytes of one message; `replies` messages per trajectory."""

    batch: int  # trajectories
    in_flight: int  # trajectories
    concurrency: int
    replies: int
    task: int
    request: int
    reply: int
    episode: int
    part: int  # of a batch of samples
    parts: int  # per batch


def payload(number: int, size: int) -> bytes:
    """An id and padding."""
    return b"%*d" % (ID_BYTES, number) + b"x" * (size - ID_BYTES)


class Process:
    """One role's connection and load."""

    def __init__(self, client: Client, load: Load) -> None:
        self.client = client
        self.js: JetStreamContext = client.jetstream(timeout=60)
        self.load = load

    async def store(self, kind: str, number: int, size: int) -> None:
        await self.js.publish(f"raw.{kind}", payload(number, size), headers={"Nats-Msg-Id": f"{kind}-{number}"})

    async def work(self, stream: str, kind: str, do: Callable[[Msg], Awaitable[None]]) -> None:
        """Fetch for ever, `concurrency` at a time."""
        queue = await self.js.pull_subscribe(f"raw.{kind}", durable=kind, stream=stream)
        slots = asyncio.Semaphore(self.load.concurrency)

        async def one(msg: Msg) -> None:
            try:
                await do(msg)
            finally:
                slots.release()

        async with asyncio.TaskGroup() as group:
            while True:
                await slots.acquire()
                free = 1
                while not slots.locked():
                    await slots.acquire()
                    free += 1
                try:
                    messages = await queue.fetch(free, timeout=5)
                except NatsTimeoutError:
                    messages = []
                for msg in messages:
                    group.create_task(one(msg))
                for _ in range(free - len(messages)):
                    slots.release()


async def dataflow(process: Process) -> None:
    """Lets tasks out, gathers episodes into batches."""
    load, due = process.load, asyncio.Queue[str]()
    read = 0

    async def on_episode(msg: Msg) -> None:
        nonlocal read
        read += 1
        if read % load.batch == 0:
            due.put_nowait("samples")

    async def on_progress(msg: Msg) -> None:
        due.put_nowait("tasks")

    await process.js.subscribe("raw.episode", stream="EPISODES", ordered_consumer=True, cb=on_episode)
    await process.client.subscribe("raw.progress", cb=on_progress)
    for _ in range(load.in_flight // load.batch):
        due.put_nowait("tasks")
    issued, parts = 0, 0
    while True:
        what = await due.get()
        async with asyncio.TaskGroup() as group:
            if what == "tasks":
                for _ in range(load.batch):
                    issued += 1
                    group.create_task(process.store("task", issued, load.task))
            else:
                for _ in range(load.parts):
                    parts += 1
                    group.create_task(process.store("sample", parts, load.part))


async def rollout(process: Process) -> None:
    """Task in, request out, replies in, episode out."""
    load, missing = process.load, dict[str, list[int]]()
    complete: dict[str, asyncio.Event] = {}

    async def on_reply(msg: Msg) -> None:
        number = msg.subject.rpartition(".")[2]
        missing[number][0] -= 1
        if not missing[number][0]:
            complete[number].set()

    async def play(msg: Msg) -> None:
        number = int(msg.data[:ID_BYTES])
        name = str(number)
        missing[name], complete[name] = [load.replies], asyncio.Event()
        await process.store("request", number, load.request)
        await complete[name].wait()
        del missing[name], complete[name]
        await process.store("episode", number, load.episode)
        await msg.ack()

    await process.client.subscribe("raw.reply.*", cb=on_reply, pending_bytes_limit=0, pending_msgs_limit=0)
    await process.work("TASKS", "task", play)


async def policy(process: Process) -> None:
    """Request in, replies out."""
    load = process.load

    async def serve(msg: Msg) -> None:
        await msg.ack()
        number = int(msg.data[:ID_BYTES])
        for _ in range(load.replies):
            await process.client.publish(f"raw.reply.{number}", payload(number, load.reply))

    await process.work("GEN", "request", serve)


async def trainer(process: Process) -> None:
    """Batch in, progress out."""
    load, parts = process.load, asyncio.Queue[Msg]()

    async def on_part(msg: Msg) -> None:
        parts.put_nowait(msg)

    await process.js.subscribe("raw.sample", stream="SAMPLES", ordered_consumer=True, cb=on_part)
    number = 0
    while True:
        for _ in range(load.parts):
            await parts.get()
        number += 1
        await process.store("progress", number, 512)


async def run_role(role: str, url: str, token: str, load: Load) -> None:
    client = await nats.connect(servers=[url], token=token, pending_size=64 << 20)
    await {"dataflow": dataflow, "rollout": rollout, "policy": policy, "trainer": trainer}[role](Process(client, load))


async def run_raw(
    server: "EmbeddedServer", load: Load, *, warm_up_s: float, measure_s: float
) -> tuple[float, int, dict[str, float]]:
    """Seconds, trajectories and CPU seconds per process of a measured while; ends its processes."""
    client = await nats.connect(servers=[server.url], token=server.token)
    try:
        js = client.jetstream()
        for config in STREAMS:
            await js.add_stream(config.evolve(duplicate_window=DUPLICATE_WINDOW_S))
        for stream, kind in (("TASKS", "task"), ("GEN", "request")):
            await js.add_consumer(stream, ConsumerConfig(durable_name=kind, max_ack_pending=100_000, ack_wait=30))
        batches: asyncio.Queue[float] = asyncio.Queue()

        async def on_progress(msg: Msg) -> None:
            batches.put_nowait(time.monotonic())

        await client.subscribe("raw.progress", cb=on_progress)
        async with AsyncExitStack() as stack:
            pids = {"nats-server": server.pid}
            for role in ROLES:
                where = ["--url", server.url, "--token-file", str(server.token_file)]
                child = await asyncio.create_subprocess_exec(
                    sys.executable, __file__, "--role", role, *where, "--load", json.dumps(asdict(load))
                )
                stack.push_async_callback(_end, child)
                pids[role] = child.pid
            async with asyncio.timeout(60 + warm_up_s + 3 * measure_s):
                return await _measure(batches, pids, load, warm_up_s, measure_s)
    finally:
        await client.close()


async def _end(child: asyncio.subprocess.Process) -> None:
    if child.returncode is None:
        child.kill()
    await child.wait()


async def _measure(
    batches: "asyncio.Queue[float]", pids: dict[str, int], load: Load, warm_up_s: float, measure_s: float
) -> tuple[float, int, dict[str, float]]:
    begun = await batches.get()
    while (first := await batches.get()) - begun < warm_up_s:
        pass
    before = {name: cpu_s(pid) for name, pid in pids.items()}
    count = 1
    while (now := await batches.get()) - first < measure_s:
        count += 1
    return now - first, count * load.batch, {name: cpu_s(pid) - before[name] for name, pid in pids.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="one process of the raw limit; started by benchmarks/pipeline.py")
    parser.add_argument("--role", choices=ROLES, required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--token-file", type=Path, required=True)
    parser.add_argument("--load", type=json.loads, required=True)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run_role(options.role, options.url, options.token_file.read_text().strip(), Load(**options.load)))


if __name__ == "__main__":
    main()
