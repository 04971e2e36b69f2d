"""From an optimizer step to tokens of the new version: sizes, speeds, latency, pause, next to what the machine can do.

    python benchmarks/weights.py --rates 1e-6 5e-6 --steps 4

Real policy-gradient steps of SmolLM2-135M (as in delta_codec.py) are published by the trainer's `WeightPublisher` to a
nats-server of its own, followed by a `WeightFollower` and swapped into the in-process engine, which decodes `--running`
requests meanwhile; trainer and replica share this process. Wall seconds, the median over the steps. The bounds are
measured in the same run: a copy of the model in memory, a copy of it over a loopback TCP connection, and a copy of as
many elements as changed.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from delta_codec import Model, versions
from rich.console import Console
from rich.table import Table

from astraflow.actors.base.context import ActorContext
from astraflow.actors.weights.follower import WeightFollower, first_head
from astraflow.actors.weights.publisher import WeightPublisher
from astraflow.actors.weights.store import full_store
from astraflow.algos.changes import Behind, changed_elements
from astraflow.algos.delta import decode, encode
from astraflow.algos.shadow import Shadow, apply
from astraflow.algos.sparse import as_integers
from astraflow.bus import Bus, EmbeddedServer, topology_of
from astraflow.config import (
    EngineSection,
    EnvSection,
    PolicySection,
    RunConfig,
    RunSection,
    SourceSection,
    TrainerSection,
    WeightsSection,
    to_json,
)
from astraflow.engines.base import EngineRequest, PolicyEngine
from astraflow.engines.cpu import CpuEngine
from astraflow.errors import EngineError
from astraflow.messages import RunRecord, Sampling
from astraflow.models.folder import read_model
from astraflow.models.smollm2 import prepare_smollm2

PROMPT_TOKENS, NEW_TOKENS = 32, 400
CHUNK_BYTES = 1 << 20


def config(transport: str) -> RunConfig:
    weights = WeightsSection(full_transport=transport)  # type: ignore[arg-type]
    solver = PolicySection(model="smollm2-135m-instruct", trainer=TrainerSection(steps=1), weights=weights)
    return RunConfig(
        run=RunSection(name="bench"),
        policies={"solver": solver},
        envs={"e": EnvSection(kind="toy")},
        sources={"s": SourceSection(env="e")},
    )


@asynccontextmanager
async def contexts(transport: str) -> AsyncIterator[tuple[ActorContext, ActorContext]]:
    """A trainer's and a replica's, on a server of their own."""
    settings = config(transport)
    with tempfile.TemporaryDirectory(prefix="astraflow-weights-") as folder:
        server = EmbeddedServer(Path(folder) / "nats")
        await server.start()
        try:
            topology = topology_of(settings)
            async with (
                Bus.connect(server.options, topology, producer="trainer") as one,
                Bus.connect(server.options, topology, producer="replica") as two,
            ):
                await one.ensure()
                record = RunRecord(name="bench", incarnation="b", config_json=to_json(settings), created_at=0.0)
                yield tuple(  # type: ignore[misc]
                    ActorContext(
                        bus=bus, config=settings, record=record, folder=Path(folder), name=role, role=role,
                        policy="solver",
                    )
                    for bus, role in ((one, "trainer"), (two, "replica"))
                )  # fmt: skip
        finally:
            await server.stop()


@asynccontextmanager
async def decoding(engine: PolicyEngine, count: int) -> AsyncIterator[None]:
    """Keep `count` requests running."""

    async def run(number: int) -> None:
        for attempt in range(10**6):
            prompt = np.random.default_rng(number).integers(5, 40_000, PROMPT_TOKENS).astype(np.int32)
            sampling = Sampling(max_new_tokens=NEW_TOKENS, ignore_eos=True)
            request = EngineRequest(id=f"{number}-{attempt}", prompt_tokens=prompt, sampling=sampling, seed=number)
            try:
                async for _ in engine.generate(request):
                    pass
            except EngineError:
                return

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run(number)) for number in range(count)]
        yield
        for task in tasks:
            task.cancel()


def best(work: Callable[[], object], repeats: int = 3) -> float:
    """Wall seconds."""
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


async def loopback_s(data: bytes) -> float:
    """Seconds for these bytes over a TCP connection to this process."""
    done = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(CHUNK_BYTES):
            pass
        writer.close()
        done.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=CHUNK_BYTES)
    async with server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        started = time.perf_counter()
        for start in range(0, len(data), CHUNK_BYTES):
            writer.write(data[start : start + CHUNK_BYTES])
            await writer.drain()
        writer.close()
        await done.wait()
        return time.perf_counter() - started


def codec(base: Model, new: Model) -> dict[str, float]:
    """The codec alone, in one thread, wall seconds."""
    digests = {name: tensor.digest() for name, tensor in base.items()}
    delta = encode(base, new, base_version=0, version=1, base_digests=digests)
    update = decode(delta.payload, base)
    shadows = [Shadow.copy_of(0, base, digests) for _ in range(3)]
    behind = Behind()
    behind.add([update])
    fresh = Shadow.copy_of(0, base, digests)
    values = behind.changes(fresh)
    bits = {name: as_integers(tensor) for name, tensor in fresh.tensors.items()}

    def scatter() -> None:
        for name, change in values.items():
            bits[name][change.positions] = change.values  # type: ignore[union-attr]

    whole = np.concatenate(list(bits.values()))
    target = np.empty_like(whole)
    return {
        "delta_bytes": float(len(delta.payload)),
        "changed": float(changed_elements(values)),
        "encode_s": best(lambda: encode(base, new, base_version=0, version=1, base_digests=digests)),
        "decode_s": best(lambda: decode(delta.payload, base)),
        "apply_s": best(lambda: apply(update, shadows.pop())),
        "copy_s": best(lambda: np.copyto(target, whole)),
        "scatter_s": best(scatter),
    }


async def follow(
    folder: Path, chain: Sequence[Model], *, transport: str, running: int, threads: int
) -> dict[str, float]:
    """Publish and follow every version; medians over the versions behind the first."""
    files, _ = read_model(folder)
    seconds: dict[str, list[float]] = {}
    full: dict[str, float] = {}
    async with contexts(transport) as (trainer, replica), full_store(trainer) as fulls:
        publisher = WeightPublisher(trainer, full_every=50, fulls=fulls)
        follower = WeightFollower(replica.bus, "solver")
        engine: CpuEngine | None = None
        started = time.perf_counter()
        await publisher.publish(chain[0], files, version=0, step=0, batch=0)
        full["full_publish_s"] = time.perf_counter() - started
        advance = await follower.advance(await first_head(replica.bus, "solver"))
        full |= {"full_transfer_s": advance.transfer_s, "full_verify_s": advance.verify_s}
        assert follower.shadow is not None
        section = EngineSection(slots=max(1, running))
        engine = CpuEngine(files, follower.shadow.tensors, section=section, threads=threads)
        await engine.start()
        follower.behind.clear()
        try:
            async with decoding(engine, running):
                for version, model in enumerate(chain[1:], 1):
                    began = time.perf_counter()
                    await publisher.publish(model, files, version=version, step=version, batch=version)
                    published = time.perf_counter()
                    advance = await follower.advance(await first_head(replica.bus, "solver"))
                    advanced = time.perf_counter()
                    changes = await asyncio.to_thread(follower.behind.changes, follower.shadow)
                    pause_s = await engine.swap(version, changes)
                    served = time.perf_counter()
                    follower.behind.clear()
                    for name, value in (
                        ("publish_s", published - began),
                        ("transfer_s", advance.transfer_s),
                        ("verify_s", advance.verify_s),
                        ("prepare_and_wait_s", served - advanced - pause_s),
                        ("pause_s", pause_s),
                        ("publish_to_served_s", served - began),
                    ):
                        seconds.setdefault(name, []).append(value)
        finally:
            await engine.stop()
    return full | {name: statistics.median(values) for name, values in seconds.items()}


async def measure(folder: Path, rate: float, arguments: argparse.Namespace) -> dict[str, float]:
    """One column: a learning rate."""
    chain = list(versions(folder, rate, arguments.steps))
    whole = b"".join(bytes(tensor.data) for tensor in chain[0].values())
    found = {"full_bytes": float(len(whole)), **codec(chain[-2], chain[-1])}
    found["loopback_s"] = min([await loopback_s(whole) for _ in range(3)])
    return found | await follow(
        folder, chain, transport=arguments.transport, running=arguments.running, threads=arguments.threads
    )


ROWS: tuple[tuple[str, str], ...] = (
    ("full_bytes", "full, MB"),
    ("delta_bytes", "delta, MB"),
    ("changed", "elements changed"),
    ("copy_s", "bound: copy of the model in memory, ms"),
    ("loopback_s", "bound: the model over loopback TCP, ms"),
    ("scatter_s", "bound: copy of the changed elements (bf16), ms"),
    ("encode_s", "encode with digests, ms"),
    ("decode_s", "decode, ms"),
    ("apply_s", "apply and verify, ms"),
    ("full_publish_s", "full: publish, ms"),
    ("full_transfer_s", "full: fetch, ms"),
    ("full_verify_s", "full: verify, ms"),
    ("publish_s", "delta: publish (encode, store, head), ms"),
    ("transfer_s", "delta: plan and fetch, ms"),
    ("verify_s", "delta: decode, apply, verify, ms"),
    ("prepare_and_wait_s", "delta: prepare, and wait for the decode step, ms"),
    ("pause_s", "delta: PAUSE of decoding, ms"),
    ("publish_to_served_s", "delta: from the step's weights to serving them, ms"),
)


def table(columns: dict[str, dict[str, Any]], title: str) -> Table:
    shown = Table("SmolLM2-135M", *columns, title=title)
    for key, label in ROWS:
        scale = 1e-6 if key.endswith("bytes") else 1.0 if key == "changed" else 1e3
        shown.add_row(
            label, *(f"{column[key] * scale:,.{0 if key == 'changed' else 2}f}" for column in columns.values())
        )
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-6, 5e-6], help="learning rates")
    parser.add_argument("--steps", type=int, default=4, help="optimizer steps per learning rate; each takes 269 MB")
    parser.add_argument("--running", type=int, default=4, help="requests that decode meanwhile")
    parser.add_argument("--threads", type=int, default=1, help="of the engine")
    parser.add_argument("--transport", default="nats", choices=("nats", "file", "http"), help="of fulls")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder = prepare_smollm2()
    columns = {f"lr {rate:g}": asyncio.run(measure(folder, rate, arguments)) for rate in arguments.rates}
    if arguments.json:
        Console().print_json(json.dumps(columns))
    else:
        title = f"fulls by {arguments.transport}, {arguments.running} requests running"
        Console(width=120).print(table(columns, title))


if __name__ == "__main__":
    main()
