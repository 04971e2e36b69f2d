"""Seconds to publish and to fetch a full version by each transport, next to a plain copy and a hash of its bytes.

    python benchmarks/full_transports.py --megabytes 269

The bytes are random, of SmolLM2-135M's size. The reader is the follower's own, in this process, with every part
verified; the trainer's server runs in threads here too, so http shares this process's cores with its reader.
"""

import argparse
import asyncio
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from astraflow.actors.base.context import ActorContext
from astraflow.bus import EmbeddedServer, NatsBus, topology_of
from astraflow.config import EnvSection, PolicySection, RunConfig, RunSection, SourceSection, WeightsSection, to_json
from astraflow.messages import Manifest, RunRecord
from astraflow.weights.codec.tensors import HostTensor
from astraflow.weights.transfer.follower import WeightFollower, first_head
from astraflow.weights.transfer.full_store import full_store
from astraflow.weights.transfer.payload_reader import PayloadReader
from astraflow.weights.transfer.publisher import WeightPublisher

LISTEN = {"http": "127.0.0.1:0", "https": "0.0.0.0:0"}


def config_of(transport: str, folder: Path) -> RunConfig:
    """A run whose policy's fulls travel by `transport`."""
    if transport == "file":
        weights = WeightsSection(full_transport="file", folder=str(folder), full_on_nats=False)
    elif transport in LISTEN:
        weights = WeightsSection(full_transport="http", listen=LISTEN[transport], advertise="127.0.0.1")
    else:
        weights = WeightsSection()
    return RunConfig(
        run=RunSection(name=transport),
        policies={"p": PolicySection(model="toy", weights=weights)},
        envs={"e": EnvSection(kind="toy")},
        sources={"e": SourceSection(env="e")},
    )


async def timed(work: Callable[[], Awaitable[Any]], repeats: int) -> float:
    """The best of some."""
    best = float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        await work()
        best = min(best, time.perf_counter() - started)
    return best


async def measure(transport: str, data: bytes, folder: Path, repeats: int) -> dict[str, float]:
    """Seconds of one transport, on a server of its own."""
    server = EmbeddedServer(folder / "nats")
    await server.start()
    config = config_of(transport, folder)
    try:
        async with NatsBus.connect(server.options, topology_of(config), producer="benchmark") as bus:
            await bus.ensure()
            record = RunRecord(name=transport, incarnation="i", config_json=to_json(config), created_at=0.0)
            ctx = ActorContext(
                bus=bus, config=config, record=record, folder=folder, name="t", role="trainer", policy="p"
            )
            async with full_store(ctx) as fulls:
                publisher, counter = WeightPublisher(ctx, fulls=fulls), SimpleNamespace(version=0)
                tensors = {"w": HostTensor("BF16", (len(data) // 2,), memoryview(data))}

                async def publish() -> None:
                    counter.version += 1
                    await publisher.publish(tensors, {}, version=counter.version, step=1, batch=1)

                publish_s = await timed(publish, repeats)
                head = await first_head(bus, "p")
                entry = await bus.logs.entry(bus.topology.weights("p"), head.manifest_sequence)
                assert entry is not None
                manifest = entry.message
                assert isinstance(manifest, Manifest)
                reader = PayloadReader(bus, "p")
                fetch_s = await timed(lambda: reader.payload(manifest), repeats)
                load_s = await timed(lambda: WeightFollower(bus, "p").advance(head), repeats)
    finally:
        await server.stop()
    return {"publish_s": publish_s, "fetch_s": fetch_s, "load_s": load_s}


async def bounds(data: bytes, repeats: int) -> dict[str, float]:
    """A copy in memory and a hash of the same bytes."""

    async def copy() -> None:
        bytearray(data)

    async def digest() -> None:
        hashlib.sha256(data).digest()

    return {"copy_s": await timed(copy, repeats), "sha256_s": await timed(digest, repeats)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=269)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where files and stores go (default: a temporary folder)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    data = np.random.default_rng(0).bytes(args.megabytes * 10**6)
    figures: dict[str, Any] = {"bytes": len(data), "bounds": asyncio.run(bounds(data, args.repeats))}
    for transport in ("nats", "file", "http", "https"):
        sys.stderr.write(f"{transport} …\n")
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            figures[transport] = asyncio.run(measure(transport, data, Path(folder), args.repeats))
    if args.json:
        sys.stdout.write(json.dumps(figures, indent=2) + "\n")
        return
    table = Table("transport", "publish s", "fetch s", "MB/s", "fetch and rebuild s")
    for transport in ("nats", "file", "http", "https"):
        row = figures[transport]
        speed = f"{args.megabytes / row['fetch_s']:.0f}"
        table.add_row(transport, f"{row['publish_s']:.2f}", f"{row['fetch_s']:.2f}", speed, f"{row['load_s']:.2f}")
    console = Console()
    console.print(table)
    limits = figures["bounds"]
    console.print(f"the same bytes: copied in {limits['copy_s']:.3f} s, hashed in {limits['sha256_s']:.3f} s")


if __name__ == "__main__":
    main()
