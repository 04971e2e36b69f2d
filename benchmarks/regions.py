"""What a version of the weights costs on the way to another region: bytes over the link, seconds until it is served.

    .venv/bin/python benchmarks/regions.py              # toy: 0.26 MB, 1 % changed
    .venv/bin/python benchmarks/regions.py --mb 270     # as large as SmolLM2-135M
    .venv/bin/python benchmarks/regions.py --json

A hub, a leaf server, the region's keeper and N readers of the weights, all in this process and two nats-servers, with a
proxy between the servers that stands for the line: 100 ms there and back, 10 Mbit/s.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from astraflow.actors.base.context import ActorContext
from astraflow.actors.region.keeper import keep_region
from astraflow.bus import Bus, EmbeddedServer, HubDoor, LeafDoor, NatsBus, topology_of, wiring
from astraflow.config import EnvSection, PolicySection, RunConfig, RunSection, SourceSection, TrainerSection, to_json
from astraflow.messages import RunRecord
from astraflow.ports import free_port
from astraflow.weights.codec.tensors import HostTensor
from astraflow.weights.transfer.follower import WeightFollower, follow_heads
from astraflow.weights.transfer.publisher import WeightPublisher
from benchmarks.thin_link import ThinLink, thin_link

CONFIG = RunConfig(
    run=RunSection(name="far"),
    policies={"solver": PolicySection(model="toy", trainer=TrainerSection(steps=1, learner="toy"))},
    envs={"game": EnvSection(kind="toy")},
    sources={"game": SourceSection(env="game")},
)
REGION = "eu"
CHANGED = 0.01  # of the elements, from one version to the next


@dataclass(kw_only=True)
class FarRegion:
    """`hub` is a context at home; `here` a bus in the region; `link` what is between them."""

    hub: ActorContext
    here: Bus
    link: ThinLink
    leaf: EmbeddedServer


@contextlib.asynccontextmanager
async def far_region(
    folder: Path, *, config: RunConfig = CONFIG, delay_s: float = 0.0, bytes_per_s: float = 0.0
) -> AsyncIterator[FarRegion]:
    """A run with a second region, whose keeper is at work."""
    door = free_port()
    hub = EmbeddedServer(folder / "hub", leaf=HubDoor(host="127.0.0.1", port=door))
    await hub.start()
    ready = asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(hub.stop)
        link = await stack.enter_async_context(thin_link(door, delay_s=delay_s, bytes_per_s=bytes_per_s))
        url = f"nats://127.0.0.1:{link.port}"
        leaf = EmbeddedServer(folder / "leaf", token=hub.token, leaf=LeafDoor(url=url, region=REGION, token=hub.token))
        await leaf.start()
        stack.push_async_callback(leaf.stop)
        home = topology_of(config)
        bus = await stack.enter_async_context(NatsBus.connect(hub.options, home, producer="home"))
        await bus.ensure()
        record = RunRecord(name="far", incarnation="inc", config_json=to_json(config), created_at=time.time())
        await bus.kv.put(wiring.RUN.key(), record)
        group = await stack.enter_async_context(asyncio.TaskGroup())
        keeping = group.create_task(
            keep_region(leaf.options, region=REGION, runs=[], report=_ignore, ready=lambda _: ready.set())
        )
        stack.callback(keeping.cancel)
        await ready.wait()
        here = await stack.enter_async_context(
            NatsBus.connect(leaf.options, topology_of(config, region=REGION), producer="far")
        )
        ctx = ActorContext(
            bus=bus, config=config, record=record, folder=folder, name="trainer-home-0", role="trainer", policy="solver"
        )
        yield FarRegion(hub=ctx, here=here, link=link, leaf=leaf)


def _ignore(text: str) -> None:
    del text


def versions(elements: int, count: int) -> list[dict[str, HostTensor]]:
    """Consecutive versions of a bf16 tensor."""
    bits = np.random.default_rng(0).integers(0, 1 << 16, elements, dtype=np.uint16)
    found = []
    for step in range(count):
        bits[np.random.default_rng(step).integers(0, elements, int(elements * CHANGED))] += 1
        found.append({"weight": HostTensor("BF16", (elements,), memoryview(bits.tobytes()))})
    return found


async def _serve(bus: Bus, served: "asyncio.Queue[int]") -> None:
    """A replica as far as its weights go: it follows the head and says which version it has, verified."""
    follower = WeightFollower(bus, "solver")
    async with contextlib.aclosing(follow_heads(bus, "solver")) as heads:
        async for head in heads:
            if follower.shadow is None or follower.shadow.version < head.version:  # a reconnect tells it again
                await follower.advance(head)
                await served.put(head.version)


async def measure(replicas: int, elements: int, deltas: int, *, delay_s: float, bytes_per_s: float) -> dict[str, float]:
    """One full and some deltas to `replicas` readers in the region."""
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        far = await stack.enter_async_context(far_region(folder, delay_s=delay_s, bytes_per_s=bytes_per_s))
        served: asyncio.Queue[int] = asyncio.Queue()
        group = await stack.enter_async_context(asyncio.TaskGroup())
        readers = [group.create_task(_serve(far.here, served)) for _ in range(replicas)]
        publisher = WeightPublisher(far.hub, full_every=1000)
        rows = []
        for number, tensors in enumerate(versions(elements, deltas + 1)):
            before, started = far.link.down, time.monotonic()
            await publisher.publish(tensors, {}, version=number, step=number, batch=number)
            published = time.monotonic()
            for _ in range(replicas):
                assert await served.get() == number
            rows.append((far.link.down - before, published - started, time.monotonic() - published))
        for reader in readers:
            reader.cancel()
    full, rest = rows[0], rows[1:]
    return {
        "replicas": replicas,
        "model_mb": elements * 2 / 1e6,
        "full_link_mb": full[0] / 1e6,
        "full_served_s": full[2],
        "delta_link_mb": sum(row[0] for row in rest) / len(rest) / 1e6,
        "delta_served_s": sum(row[2] for row in rest) / len(rest),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, default=0.26, help="model size in MB of bf16 (default: 0.26)")
    parser.add_argument("--deltas", type=int, default=5)
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rtt-ms", type=float, default=100.0)
    parser.add_argument("--mbit", type=float, default=10.0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    line = {"delay_s": args.rtt_ms / 2000, "bytes_per_s": args.mbit * 1e6 / 8}
    if not args.json:
        print(f"{args.rtt_ms:g} ms, {args.mbit:g} Mbit/s; a delta changes {CHANGED:.0%} of the elements")  # noqa: T201
    figures = []
    for replicas in args.replicas:
        figures.append(asyncio.run(measure(replicas, int(args.mb * 5e5), args.deltas, **line)))
        if not args.json:
            print("  ".join(f"{name} {value:.3f}" for name, value in figures[-1].items()), flush=True)  # noqa: T201
    if args.json:
        print(json.dumps(figures, indent=2))  # noqa: T201


if __name__ == "__main__":
    main()
