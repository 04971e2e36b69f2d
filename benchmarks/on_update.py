"""What `on_update = "recompute"` costs: one swap in mid-flight, with running requests continued or computed anew.

    python benchmarks/on_update.py [--requests 16] [--group 4] [--prompt 256] [--tokens 64] [--threads 1] [--json]

The in-process engine serves SmolLM2-135M; requests come in groups of equal prompts. When half of the tokens are there,
one small tensor is swapped for itself, so that all that differs is what happens to the running requests. Rounds
alternate between the modes, each with prompts of its own; medians. CPU seconds are the process's: other load on the
machine lengthens them less than wall seconds.
"""

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch: see the engine's notes on threads

import numpy as np
from rich.console import Console
from rich.table import Table

from astraflow.config import EngineSection
from astraflow.engines.base import EngineRequest
from astraflow.engines.cpu import CpuEngine
from astraflow.messages import Sampling
from astraflow.models.folder import read_model
from astraflow.models.smollm2 import prepare_smollm2
from astraflow.weights.codec.tensors import HostTensor

MODES: tuple[Literal["continue", "recompute"], ...] = ("continue", "recompute")
SWAPPED = "model.norm.weight"


def work(arguments: argparse.Namespace, seed: int) -> list[EngineRequest]:
    """The requests of one round."""
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(100, 40_000, arguments.prompt).astype(np.int32) for _ in range(arguments.requests)]
    sampling = Sampling(max_new_tokens=arguments.tokens, ignore_eos=True)
    return [
        EngineRequest(
            id=f"{seed}-{i}", prompt_tokens=prompts[i - i % arguments.group], sampling=sampling, seed=1000 * seed + i
        )
        for i in range(arguments.requests)
    ]


async def play(
    engine: CpuEngine, requests: list[EngineRequest], changes: Mapping[str, HostTensor], version: int
) -> dict[str, float]:
    """One round: figures from the first token of all to the last; the swap is half way."""
    half = sum(item.sampling.max_new_tokens for item in requests) // 2
    arrived, gap_s = 0, 0.0
    half_way = asyncio.Event()

    async def read(request: EngineRequest) -> None:
        nonlocal arrived, gap_s
        last = 0.0
        async for chunk in engine.generate(request):
            now = time.perf_counter()
            gap_s = max(gap_s, now - last if last else 0.0)
            last = now
            arrived += len(chunk.tokens)
            if arrived >= half:
                half_way.set()

    wall, cpu = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as group:
        for request in requests:
            group.create_task(read(request))
        await half_way.wait()
        pause_s = await engine.swap(version, changes)
    cpu_s = time.process_time() - cpu
    return {
        "tokens_per_s": arrived / (time.perf_counter() - wall),
        "tokens_per_cpu_s": arrived / cpu_s,
        "pause_s": pause_s,
        "longest_wait_for_a_token_s": gap_s,
    }


async def measure(folder: Path, arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    files, tensors = read_model(folder)
    changes = {SWAPPED: tensors[SWAPPED]}
    engines = {}
    for mode in MODES:
        section = EngineSection(slots=arguments.requests, on_update=mode)
        engines[mode] = CpuEngine(files, tensors, section=section, threads=arguments.threads)
        await engines[mode].start()
    rounds: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    for seed in range(1, 1 + arguments.rounds):
        for mode, engine in engines.items():
            rounds[mode].append(await play(engine, work(arguments, seed), changes, seed))
    for engine in engines.values():
        await engine.stop()
    return {
        mode: {key: statistics.median(item[key] for item in found) for key in found[0]}
        for mode, found in rounds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=16, help="that run when the weights change")
    parser.add_argument("--group", type=int, default=4, help="requests with the same prompt")
    parser.add_argument("--prompt", type=int, default=256, help="tokens")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens of each request")
    parser.add_argument("--rounds", type=int, default=3, help="of each mode")
    parser.add_argument("--threads", type=int, default=1, help="of the engine")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    found: dict[str, dict[str, Any]] = asyncio.run(measure(prepare_smollm2(), arguments))
    if arguments.json:
        Console().print_json(json.dumps(found))
        return
    shape = (
        f"{arguments.requests} requests, groups of {arguments.group}, {arguments.prompt} + {arguments.tokens} tokens"
    )
    table = Table("on_update", "tokens/s", "tokens per CPU s", "pause, ms", "longest wait for a token, s", title=shape)
    for mode, row in found.items():
        waits = (f"{row['pause_s'] * 1e3:.1f}", f"{row['longest_wait_for_a_token_s']:.2f}")
        table.add_row(mode, f"{row['tokens_per_s']:.0f}", f"{row['tokens_per_cpu_s']:.0f}", *waits)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
