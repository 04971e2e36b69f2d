"""The SGLang engine next to bare SGLang under the same load, and what a weight update costs by each way.

    python benchmarks/sglang.py [--model smollm2-135m-instruct] [--requests 16] [--prompt 64] [--tokens 48] [--rounds 3]
                                [--share 0.015] [--args '{"tp_size": 1}'] [--json]

One server. Rounds alternate between plain HTTP requests to it and the same requests through the engine; a round's
tokens per second are of all of its tokens, from the first request to the last token. Then running requests are met by
updates of `--share` of all elements: the pause is what `swap` returns, the bytes are what crosses to the server.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from astraflow.config import EngineSection, SglangSection
from astraflow.engines.base import EngineRequest
from astraflow.engines.sglang.client import Client
from astraflow.engines.sglang.engine import SglangEngine
from astraflow.engines.sglang.update_file import update_bytes
from astraflow.engines.sglang.updates import DiskWay, TensorsWay, Way
from astraflow.messages import Sampling
from astraflow.models.facts import read_facts
from astraflow.models.folder import read_model
from astraflow.models.resolve import resolve_model
from astraflow.weights.codec.changes import Change, ChangedElements
from astraflow.weights.codec.differences import as_integers
from astraflow.weights.codec.tensors import HostTensor

CPU = '{"device": "cpu", "mem_fraction_static": 0.3, "max_total_tokens": 20000, "max_running_requests": 64}'


def requests(arguments: argparse.Namespace, seed: int) -> list[EngineRequest]:
    """Of one round: random prompts."""
    rng = np.random.default_rng(seed)
    sampling = Sampling(max_new_tokens=arguments.tokens, ignore_eos=True)
    return [
        EngineRequest(
            id=f"{seed}-{i}",
            prompt_tokens=rng.integers(2, arguments.vocabulary, arguments.prompt).astype(np.int32),
            sampling=sampling,
            seed=i,
        )
        for i in range(arguments.requests)
    ]


async def bare(client: Client, work: list[EngineRequest]) -> None:
    """As a user of SGLang would write it: streamed, with logprobs."""

    async def one(request: EngineRequest) -> None:
        body = {
            "input_ids": request.prompt_tokens.tolist(),
            "sampling_params": {"max_new_tokens": request.sampling.max_new_tokens, "ignore_eos": True},
            "return_logprob": True,
            "stream": True,
        }
        async for _ in client.generate(body):
            pass

    async with asyncio.TaskGroup() as group:
        for request in work:
            group.create_task(one(request))


async def through(engine: SglangEngine, work: list[EngineRequest]) -> None:
    """The same through the engine."""

    async def one(request: EngineRequest) -> None:
        async for _ in engine.generate(request):
            pass

    async with asyncio.TaskGroup() as group:
        for request in work:
            group.create_task(one(request))


def update(tensors: Mapping[str, HostTensor], share: float, rng: np.random.Generator) -> dict[str, Change]:
    """That share of each tensor's elements, with the bits of others."""
    changes: dict[str, Change] = {}
    for name, tensor in tensors.items():
        integers = as_integers(tensor)
        positions = np.flatnonzero(rng.random(len(integers)) < share)
        changes[name] = ChangedElements(tensor.dtype, tensor.shape, positions, integers[positions[::-1]])
    return changes


def size_of(name: str, way: Way, changes: Mapping[str, Change]) -> int:
    """Bytes that the server reads for an update: a file of changed elements, one of whole tensors, or requests."""
    if name == "delta":
        return len(update_bytes(changes))
    if name == "tensors":
        return sum(map(len, way.prepare(changes)))
    return sum(change.data.nbytes for change in changes.values() if isinstance(change, HostTensor))


async def swaps(engine: SglangEngine, arguments: argparse.Namespace, tensors: Mapping[str, HostTensor]) -> Any:
    """Pause, seconds in all, and megabytes by each way, while requests run."""
    link, rng = engine.link, np.random.default_rng(0)
    folder = link.folder
    files = read_model(resolve_model(arguments.model))[0]
    ways: dict[str, Way] = {
        "delta": link.way,
        "disk": DiskWay(link.client, folder, files),
        "tensors": TensorsWay(link.client, 1),
    }
    rows = {}
    for number, (name, way) in enumerate(ways.items(), start=1):
        link.way = way
        pauses, totals, sizes = [], [], []
        for repeat in range(arguments.rounds):
            changes = update(tensors, arguments.share, rng) if name == "delta" else dict(tensors)
            sizes.append(size_of(name, way, changes) / 1e6)
            async with asyncio.TaskGroup() as group:
                group.create_task(through(engine, requests(arguments, 1000 * number + repeat)))
                await asyncio.sleep(1.0)
                started = time.monotonic()
                pauses.append(await engine.swap(100 * number + repeat, changes))
                totals.append(time.monotonic() - started)
        rows[name] = {
            "pause_s": statistics.median(pauses),
            "total_s": statistics.median(totals),
            "megabytes": statistics.median(sizes),
        }
    return rows


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """All figures, with one server."""
    files, tensors = read_model(resolve_model(arguments.model))
    arguments.vocabulary = read_facts(files).vocab_size
    section = EngineSection(
        kind="sglang", slots=arguments.requests, sglang=SglangSection(args=json.loads(arguments.args))
    )
    engine = SglangEngine(files, tensors, section=section)
    started = time.monotonic()
    await engine.start()
    figures: dict[str, Any] = {"start_s": time.monotonic() - started, "about": engine.load().about}
    try:
        rates: dict[str, list[float]] = {"bare": [], "engine": []}
        await through(engine, requests(arguments, 1))  # both warm, admission too
        for number in range(arguments.rounds):
            for name, play in (
                ("bare", bare(engine.link.client, requests(arguments, 10 + 2 * number))),
                ("engine", through(engine, requests(arguments, 11 + 2 * number))),
            ):
                started = time.monotonic()
                await play
                rates[name].append(arguments.requests * arguments.tokens / (time.monotonic() - started))
        figures["admitted"] = engine.load().slots
        figures |= {f"{name}_tokens_per_s": statistics.median(values) for name, values in rates.items()}
        figures["engine_over_bare"] = statistics.median(
            one / other for one, other in zip(rates["engine"], rates["bare"], strict=True)
        )
        figures["swaps"] = await swaps(engine, arguments, tensors)
    finally:
        await engine.stop()
    return figures


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=64, help="tokens")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--share", type=float, default=0.015)
    parser.add_argument("--args", default=CPU, help="server arguments as JSON")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures = asyncio.run(measure(arguments))
    if arguments.json:
        Console().print_json(data=figures)
        return
    table = Table("figure", "value")
    for name, value in figures.items():
        if name != "swaps":
            table.add_row(name, f"{value:.3f}" if isinstance(value, float) else str(value))
    for way, row in figures["swaps"].items():
        table.add_row(f"update by {way}", ", ".join(f"{key} {value:.3f}" for key, value in row.items()))
    Console().print(table)


if __name__ == "__main__":
    main()
