"""How elastic a run is: joining, draining, dying, and whether throughput follows the sum of the replicas' speeds.

    python benchmarks/elastic.py [--only join detect pool slow] [--replicas 1 4 16 64] [--seconds 4] [--json]

join    On a live run under load: process start of a light replica (toy engine) → its first token, and how many versions
        that is behind the head; SIGTERM → the end of its process, and → its last request being accepted elsewhere.
detect  After kill −9, on the same run: until a policy replica's requests go on elsewhere (silence_s), a rollout's task
        is played again (ack_wait_s), another dataflow has the lease (killed: at once on the same machine; frozen:
        lease_s), the restarted trainer has it. And the tokens that the dead replica's requests cost: sampled again, if
        they are continued (as they are) and if they were generated anew; for which some are prefilled again.
        The settings are short and stand in the output: with others the times scale with them.
pool    Tokens per second of 1 to 64 simulated replicas in this process, next to the sum of their rates.
slow    The same with four replicas of which one is four times slower.

The pool's engines sample at a fixed rate and cost next to nothing, so what is missing from the sum is the price of
queue, chunks and supervision; on few cores 64 replicas and their requester compete for one core. Linux only.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import uvloop
from elastic_life import SETTINGS, life
from elastic_pool import SLOTS, throughput
from rich.console import Console
from rich.table import Table

PARTS = ("join", "detect", "pool", "slow")
POOL_STEP_S = 0.1  # 40 tokens/s for each replica of four slots
SLOW_STEP_S = 0.02
SLOWER = 4


async def measure(
    only: set[str], *, replicas: list[int], rounds: int, warm_up_s: float, measure_s: float, train_s: float
) -> Any:
    """All figures, under the keys of `--json`."""
    results: dict[str, Any] = {"cores": os.cpu_count(), "load_average": round(os.getloadavg()[0], 1)}
    if only & {"join", "detect"}:
        with tempfile.TemporaryDirectory(prefix="astraflow-elastic-") as name:
            found = await life(Path(name), rounds=rounds, only=only, train_s=train_s)
        if "join" in found:
            each = found["join"]
            results["join"] = {key: round(statistics.median(one[key] for one in each), 3) for key in each[0]}
            results["join"]["rounds"] = rounds
        if "detect" in found:
            results["detect"] = {key: round(value, 3) for key, value in found["detect"].items()} | {
                "settings": SETTINGS
            }
    if "pool" in only:
        results["pool"] = [
            _rates(await throughput([POOL_STEP_S] * n, warm_up_s=warm_up_s, measure_s=measure_s)) | {"replicas": n}
            for n in replicas
        ]
    if "slow" in only:
        steps = [SLOW_STEP_S] * 3 + [SLOWER * SLOW_STEP_S]
        results["slow"] = _rates(await throughput(steps, warm_up_s=warm_up_s, measure_s=measure_s))
        results["slow"] |= {"replicas": len(steps), "slower": SLOWER}
    return results


def _rates(rates: tuple[float, float]) -> dict[str, float]:
    measured, rated = rates
    return {
        "tokens_per_s": round(measured, 1),
        "sum_of_rates": round(rated, 1),
        "efficiency": round(measured / rated, 3),
    }


def tables(results: dict[str, Any]) -> list[Table]:
    """The figures for people."""
    found = []
    for part in ("join", "detect"):
        if part in results:
            table = Table(title=f"{part} ({results['cores']} cores, load {results['load_average']})")
            table.add_column("figure")
            table.add_column("value", justify="right")
            for key, value in results[part].items():
                table.add_row(key, str(value))
            found.append(table)
    pools = [*results.get("pool", []), *([results["slow"]] if "slow" in results else [])]
    if pools:
        table = Table(title=f"simulated replicas, {SLOTS} slots each")
        for column in ("replicas", "tokens/s", "sum of rates", "efficiency"):
            table.add_column(column, justify="right")
        for row in pools:
            label = f"{row['replicas']}, one ×{row['slower']} slower" if "slower" in row else str(row["replicas"])
            table.add_row(label, *(str(row[key]) for key in ("tokens_per_s", "sum_of_rates", "efficiency")))
        found.append(table)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure")
    parser.add_argument("--replicas", nargs="+", type=int, default=[1, 4, 16, 64], help="sizes of the pool")
    parser.add_argument("--seconds", type=float, default=4.0, help="measured per pool, after warming up")
    parser.add_argument("--warm-up", type=float, default=2.0, help="seconds before")
    parser.add_argument("--rounds", type=int, default=3, help="replicas that join and are drained; medians count")
    parser.add_argument("--train-s", type=float, default=0.0, help="seconds of a trainer's step, at least")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        results = runner.run(
            measure(
                set(options.only),
                replicas=options.replicas,
                rounds=options.rounds,
                warm_up_s=options.warm_up,
                measure_s=options.seconds,
                train_s=options.train_s,
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
