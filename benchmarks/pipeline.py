"""Trajectories and MB per second of the whole path, next to the raw nats-py limit, in one run on the same machine.

    python benchmarks/pipeline.py [--shape small large] [--seconds 6] [--rounds 1] [--seed 0] [--json]

The path: dataflow → TASKS → rollout → GEN → policy → token chunks → EPISODES → dataflow → SAMPLES → trainer →
progress, with a toy engine, a toy learner and an environment that cost next to nothing. It is `astraflow up` on an
embedded server with default settings: six processes (`up`, dataflow, rollout, policy, trainer, recorder) and
nats-server, snapshots, checkpoints, weights, metrics and the recorded files included.

The raw limit (raw_nats.py) is plain nats-py, no AstraFlow code, moving as many messages of the same sizes through the
same hops: equal storage, sync and retention, equal numbers of trajectories in flight and of processes on the path. It
encodes, decides and records nothing. Rounds of the two alternate and the median of each counts, because others may use
the machine; CPU milliseconds per trajectory hardly depend on them.

MB/s counts the payload of what the path's hops publish (tasks, requests, chunks, episodes, samples), each once.
Linux only.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline_run import Figures, Shape, run_pipeline
from raw_nats import Load, run_raw
from rich.console import Console
from rich.table import Table

from astraflow.bus import EmbeddedServer

SHAPES = {
    "small": Shape(name="small", prompt_tokens=32, completion_tokens=32, batch_groups=16),
    "large": Shape(name="large", prompt_tokens=512, completion_tokens=3584, batch_groups=4),
}
HOPS = ("task", "gen", "reply", "episode", "sample")
PART_BYTES = 512 << 10  # larger messages are split
LEAST_BYTES = 64  # a raw message holds an id at least


@dataclass(frozen=True)
class Round:
    """The path and the raw limit, one after the other."""

    ours: Figures
    raw: Figures


def raw_load(shape: Shape, ours: Figures) -> Load:
    """The messages that the path was seen to send."""

    def size(kind: str) -> int:
        return max(LEAST_BYTES, round(ours.bytes[kind] / ours.messages[kind]))

    batch_bytes = round(ours.bytes["sample"] * shape.batch)
    parts = -(-batch_bytes // PART_BYTES)
    return Load(
        batch=shape.batch,
        in_flight=shape.in_flight,
        concurrency=shape.concurrency,
        replies=max(1, round(ours.messages["reply"])),
        task=size("task"),
        request=size("gen"),
        reply=size("reply"),
        episode=size("episode"),
        part=max(LEAST_BYTES, batch_bytes // parts),
        parts=parts,
    )


async def run_round(shape: Shape, *, warm_up_s: float, measure_s: float, seed: int) -> Round:
    """One measurement of each."""
    with tempfile.TemporaryDirectory(prefix="astraflow-pipeline-") as name:
        ours = await run_pipeline(Path(name), shape, warm_up_s=warm_up_s, measure_s=measure_s, seed=seed)
    with tempfile.TemporaryDirectory(prefix="astraflow-raw-") as name:
        server = EmbeddedServer(Path(name))
        await server.start()
        try:
            load = raw_load(shape, ours)
            raw = await run_raw(server, load, warm_up_s=warm_up_s, measure_s=measure_s)
        finally:
            await server.stop()
    return Round(ours, Figures(seconds=raw[0], trajectories=raw[1], cpu_s=raw[2]))


def summary(shape: Shape, rounds: list[Round]) -> dict[str, Any]:
    """Medians over the rounds, under the keys of `--json`."""

    def median(values: list[float], digits: int = 1) -> float:
        return round(statistics.median(values), digits)

    def per_process(figures: list[Figures]) -> dict[str, float]:
        names = sorted({name for each in figures for name in each.cpu_s})
        return {n: median([1000 * f.cpu_s.get(n, 0.0) / f.trajectories for f in figures], 3) for n in names}

    ours, raw = [each.ours for each in rounds], [each.raw for each in rounds]
    rate, raw_rate = [each.trajectories_per_s for each in ours], [each.trajectories_per_s for each in raw]
    trajectory_bytes = statistics.median([sum(each.bytes.get(hop, 0.0) for hop in HOPS) for each in ours])
    busy = {name: median([each.cpu_s.get(name, 0.0) / each.seconds for each in ours], 3) for name in ours[0].cpu_s}
    return {
        "shape": shape.name,
        "tokens": shape.prompt_tokens + shape.completion_tokens,
        "trajectories_per_s": median(rate),
        "raw_trajectories_per_s": median(raw_rate),
        "ratio": round(statistics.median([a / b for a, b in zip(rate, raw_rate, strict=True)]), 2),
        "mb_per_s": median([each * trajectory_bytes / 1e6 for each in rate], 2),
        "raw_mb_per_s": median([each * trajectory_bytes / 1e6 for each in raw_rate], 2),
        "bytes_per_trajectory": round(trajectory_bytes),
        "messages_per_trajectory": {name: round(count, 3) for name, count in ours[-1].messages.items()},
        "cpu_ms_per_trajectory": median([each.cpu_ms for each in ours], 3),
        "raw_cpu_ms_per_trajectory": median([each.cpu_ms for each in raw], 3),
        "cpu_ms_by_process": per_process(ours),
        "raw_cpu_ms_by_process": per_process(raw),
        "cores_by_process": busy,
        "bottleneck": max(busy, key=lambda name: busy[name]),
        "load_average": round(os.getloadavg()[0], 1),
        "rounds": len(rounds),
    }


async def measure(shapes: list[Shape], *, rounds: int, warm_up_s: float, measure_s: float, seed: int) -> list[Any]:
    """Summaries of all shapes."""
    results = []
    for shape in shapes:
        done = [
            await run_round(shape, warm_up_s=warm_up_s, measure_s=measure_s, seed=seed + number)
            for number in range(rounds)
        ]
        results.append(summary(shape, done))
    return results


def tables(results: list[dict[str, Any]]) -> list[Table]:
    """The figures for people: rates, then where the time goes, then what is on the wire."""
    load = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    rates = Table(title=f"Trajectories through the whole path and raw nats-py ({load})")
    for column in ("shape", "tokens", "per s", "raw", "ratio", "MB/s", "raw", "CPU ms", "raw"):
        rates.add_column(column, justify="left" if column == "shape" else "right")
    keys = ("trajectories_per_s", "raw_trajectories_per_s", "ratio", "mb_per_s", "raw_mb_per_s")
    for row in results:
        cpu = (row["cpu_ms_per_trajectory"], row["raw_cpu_ms_per_trajectory"])
        rates.add_row(row["shape"], str(row["tokens"]), *(str(row[key]) for key in keys), *map(str, cpu))
    return [rates] + [table for row in results for table in (_time(row), _wire(row))]


def _time(row: dict[str, Any]) -> Table:
    table = Table(title=f"{row['shape']}: where the time goes (busiest: {row['bottleneck']})")
    for column in ("process", "CPU ms per trajectory", "raw", "cores in use"):
        table.add_column(column, justify="left" if column == "process" else "right")
    raw = row["raw_cpu_ms_by_process"]
    for name, cores in sorted(row["cores_by_process"].items(), key=lambda item: -item[1]):
        beside = raw.get(name, raw.get(name.split("-", 1)[0], ""))
        table.add_row(name, f"{row['cpu_ms_by_process'][name]:.3f}", str(beside), f"{cores:.2f}")
    return table


def _wire(row: dict[str, Any]) -> Table:
    total = sum(row["messages_per_trajectory"].values())
    table = Table(title=f"{row['shape']}: {total:.1f} messages published per trajectory")
    for column in ("kind", "messages"):
        table.add_column(column, justify="left" if column == "kind" else "right")
    for name, count in row["messages_per_trajectory"].items():
        table.add_row(name, f"{count:.2f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", choices=list(SHAPES), default=list(SHAPES), help="workloads")
    parser.add_argument("--seconds", type=float, default=6.0, help="measured per round, after warming up")
    parser.add_argument("--warm-up", type=float, default=2.0, help="seconds from the first batch on")
    parser.add_argument("--rounds", type=int, default=1, help="alternating measurements per shape")
    parser.add_argument("--seed", type=int, default=0, help="of the first round; each takes the next")
    parser.add_argument("--json", action="store_true", help="one JSON list instead of tables")
    options = parser.parse_args()
    results = asyncio.run(
        measure(
            [SHAPES[name] for name in options.shape],
            rounds=options.rounds,
            warm_up_s=options.warm_up,
            measure_s=options.seconds,
            seed=options.seed,
        )
    )
    console = Console()
    if options.json:
        console.print_json(json.dumps(results))
        return
    for table in tables(results):
        console.print(table)


if __name__ == "__main__":
    main()
