"""Tokens per second of the CPU engine next to `model.generate`, in one run, on the same machine and weights.

    python benchmarks/engine.py [--threads 1] [--rounds 3] [--model FOLDER] [--json]

Rounds alternate between the two, and the best of each counts, so that a busy machine hits both alike. Prompts differ
in every round: nothing is reused between rounds. Only tokens that a request asked for count; with mixed lengths,
`generate` computes a whole batch to its longest member.
"""

import argparse
import asyncio
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch: see the engine's notes on threads
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM

from astraflow.compute import compute_dtype
from astraflow.config import EngineSection
from astraflow.engines.base import EngineRequest
from astraflow.engines.cpu import CpuEngine
from astraflow.messages import Sampling
from astraflow.models.folder import read_model
from astraflow.models.smollm2 import prepare_smollm2

PROMPT, COMPLETION = 40, 32


@dataclass(frozen=True)
class Work:
    """One request: its prompt and how many tokens it wants."""

    prompt: np.ndarray[Any, np.dtype[np.int32]]
    count: int


def equal_work(requests: int, rng: np.random.Generator) -> list[Work]:
    return [Work(random_prompt(PROMPT, rng), COMPLETION) for _ in range(requests)]


def mixed_work(requests: int, rng: np.random.Generator) -> list[Work]:
    """Lengths as an RL step has them: most are short, some are long."""
    prompts = rng.integers(16, 65, requests)
    counts = np.minimum(128, 8 + rng.exponential(32, requests)).astype(int)
    counts[0] = 128
    return [Work(random_prompt(int(p), rng), int(c)) for p, c in zip(prompts, counts, strict=True)]


def group_work(requests: int, rng: np.random.Generator) -> list[Work]:
    """Groups of 8 equal prompts with short answers: the arithmetic example's shape."""
    prompts = [random_prompt(45, rng) for _ in range(requests // 8)]
    return [Work(prompt, 14) for prompt in prompts for _ in range(8)]


def random_prompt(length: int, rng: np.random.Generator) -> np.ndarray[Any, np.dtype[np.int32]]:
    return rng.integers(100, 40_000, length).astype(np.int32)


WORKLOADS: dict[str, tuple[Callable[[int, np.random.Generator], list[Work]], int]] = {
    "1 request": (equal_work, 1),
    "8 requests": (equal_work, 8),
    "32 requests": (equal_work, 32),
    "64 requests": (equal_work, 64),
    "32 mixed lengths": (mixed_work, 32),
    "8 groups of 8": (group_work, 64),
}


async def run_engine(engine: CpuEngine, work: Sequence[Work], seed: int) -> float:
    """Seconds until all requests are complete."""

    async def read(request: EngineRequest) -> None:
        async for _ in engine.generate(request):
            pass

    requests = [
        EngineRequest(
            id=f"{seed}-{index}",
            prompt_tokens=item.prompt,
            sampling=Sampling(max_new_tokens=item.count, ignore_eos=True),
            seed=seed,
        )
        for index, item in enumerate(work)
    ]
    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for request in requests:
            group.create_task(read(request))
    return time.perf_counter() - started


def run_generate(model: Any, work: Sequence[Work]) -> float:
    """Seconds of one left-padded `generate` over the same requests."""
    width = max(item.prompt.size for item in work)
    ids = torch.zeros(len(work), width, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, item in enumerate(work):
        ids[row, width - item.prompt.size :] = torch.from_numpy(item.prompt)
        mask[row, width - item.prompt.size :] = 1
    started = time.perf_counter()
    with torch.inference_mode():
        model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=max(item.count for item in work),
            do_sample=True,
            temperature=1.0,
            top_k=0,  # `generate` inserts a top-k of 50 unless told otherwise
            top_p=1.0,
            pad_token_id=0,
        )
    return time.perf_counter() - started


async def measure(folder: Path, *, threads: int, rounds: int, names: Sequence[str]) -> list[dict[str, Any]]:
    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=compute_dtype("auto"), local_files_only=True).eval()
    model.generation_config.eos_token_id = None
    engine = CpuEngine(*read_model(folder), section=EngineSection(), threads=threads)
    await engine.start()
    results = []
    for name in names:
        make, requests = WORKLOADS[name]
        engine_s, generate_s = float("inf"), float("inf")
        for seed in range(rounds):
            work = make(requests, np.random.default_rng(seed))
            engine_s = min(engine_s, await run_engine(engine, work, seed) / tokens(work))
            generate_s = min(generate_s, run_generate(model, work) / tokens(work))
        results.append(
            {
                "workload": name,
                "threads": threads,
                "engine_tokens_per_s": round(1 / engine_s, 1),
                "generate_tokens_per_s": round(1 / generate_s, 1),
                "ratio": round(generate_s / engine_s, 2),
            }
        )
    await engine.stop()
    return results


def tokens(work: Sequence[Work]) -> int:
    return sum(item.count for item in work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--rounds", type=int, default=3, help="alternating measurements per workload")
    parser.add_argument("--model", type=Path, help="a Hugging Face folder; default: SmolLM2-135M-Instruct")
    parser.add_argument("--only", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS), help="workloads")
    parser.add_argument("--json", action="store_true", help="one JSON list instead of a table")
    options = parser.parse_args()
    folder = options.model or prepare_smollm2()
    results = asyncio.run(measure(folder, threads=options.threads, rounds=options.rounds, names=options.only))
    console = Console()
    if options.json:
        console.print_json(json.dumps(results))
        return
    table = Table(title=f"{folder.name}, {options.threads} thread(s), load {os.getloadavg()[0]:.1f}: tokens per second")
    for column in ("workload", "engine", "generate", "ratio"):
        table.add_column(column, justify="left" if column == "workload" else "right")
    for row in results:
        figures = (row["engine_tokens_per_s"], row["generate_tokens_per_s"], f"{row['ratio']}×")
        table.add_row(row["workload"], *map(str, figures))
    console.print(table)


if __name__ == "__main__":
    main()
