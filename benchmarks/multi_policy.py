"""Two policies that train together: no barrier against lock-step, the same work through the same actors and bus.

    python benchmarks/multi_policy.py [--iterations 8] [--scale 0.05] [--json]

Each iteration trains both policies on the same number of episodes: a long-tailed turn of the solver, a short one of
the verifier. Engines and learners are the toys, whose times are given here; everything else is `astraflow up` with its
real processes and server. AstraFlow is run as it is meant to be; lock-step generates a whole batch, waits for its
slowest episode, then trains one policy after the other, with nothing else going on meanwhile (`dataflow.meter =
"tightest"` and `max_staleness = 0`; the second trainer is given the time of both).

The shape: seconds per iteration as published for two policies are 212.64 in lock-step and 77.65 without barriers. How
they split isn't published; the defaults here (generation 72 s of work per iteration at full capacity, trainers 48 s and
40 s, log-normal lengths with sigma 0.6, each batch with the same lengths) are ours. `--scale` shrinks all of them.

The bound is max(generation work / capacity, a trainer's work) per iteration: no schedule is faster. Busy fractions are
work over (capacity · time). Iteration times are the slower policy's, between two of its
optimizer steps, without the warm-up at the start and the drain at the end. Linux only.
"""

import argparse
import asyncio
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multi_policy_env import lengths
from pipeline_run import started
from rich.console import Console
from rich.table import Table

from astraflow.messages import Metrics
from astraflow.view.jsonl_lines import read_metrics

RUN = "multi-policy"
POLICIES = ("solver", "verifier")
MEAN_TOKENS = 24  # decode steps of a mean long turn: fine enough for a tail, few enough for a laptop
DRAIN = 3  # iterations behind the measured ones, which have fewer and fewer episodes in flight
PUBLISHED_S = {"lock_step": 212.64, "astraflow": 77.65}

RUN_FILE = """\
[run]
name = "{run}"
seed = {seed}

[envs.bench]
kind = "multi_policy_env:LongTailEnv"
args = {{ episodes = {episodes}, mean = {mean}, sigma = {sigma}, seed = {seed} }}

[sources.bench]
env = "bench"
group_size = {group_size}

[dataflow]
meter = "{meter}"
snapshot_every_s = 30

[node]
episodes_per_rollout = {concurrency}
"""
POLICY = """
[policies.{name}]
model = "toy"
engine = {{ kind = "toy", slots = {slots}, toy_step_s = {step_s}, context_length = 16384 }}

[policies.{name}.trainer]
learner = "toy"
steps = {steps}
batch_groups = {groups}
max_staleness = {staleness}
prefetch = {prefetch}
filters = []
checkpoint_every = 1000
toy_step_s = {train_s}
"""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The work of one iteration, in seconds before scaling."""

    generation_s: float = 72.0  # work over capacity
    train_s: tuple[float, float] = (48.0, 40.0)
    sigma: float = 0.6
    scale: float = 0.05
    groups: int = 8
    group_size: int = 4
    slots: int = 16
    max_staleness: int = 2
    seed: int = 0

    @property
    def episodes(self) -> int:
        """In a batch."""
        return self.groups * self.group_size

    @property
    def step_s(self) -> float:
        """Seconds of a decode step of the solver's engine."""
        steps = self.episodes * MEAN_TOKENS / self.slots
        return self.generation_s * self.scale / steps

    @property
    def batch_work_s(self) -> float:
        """What the solver's engine has to do for a batch, over its capacity: `generation_s` in whole tokens, scaled."""
        tokens = sum(lengths(0, episodes=self.episodes, mean=MEAN_TOKENS, sigma=self.sigma, seed=self.seed))
        return tokens * self.step_s / self.slots

    def run_file(self, iterations: int, *, lock_step: bool) -> str:
        """The run file of one of the two ways."""
        first, second = (seconds * self.scale for seconds in self.train_s)
        times = (first, first + second) if lock_step else (first, second)
        staleness = 0 if lock_step else self.max_staleness
        text = RUN_FILE.format(
            run=RUN,
            seed=self.seed,
            episodes=self.episodes,
            mean=MEAN_TOKENS,
            sigma=self.sigma,
            group_size=self.group_size,
            concurrency=2 * max(self.slots, self.episodes),
            meter="tightest" if lock_step else "any",
        )
        for name, train_s in zip(POLICIES, times, strict=True):
            text += POLICY.format(
                name=name,
                slots=self.slots if name == "solver" else 256,
                step_s=round(self.step_s, 5),
                steps=iterations,
                groups=self.groups,
                staleness=staleness,
                prefetch=min(1, staleness),
                train_s=train_s,
            )
        return text


@dataclass(frozen=True, kw_only=True)
class Way:
    """What was measured of one way to run, in scaled seconds per iteration."""

    iteration_s: float
    generation_s: float  # work over capacity
    train_s: dict[str, float]

    @property
    def bound_s(self) -> float:
        return max(self.generation_s, *self.train_s.values())

    def figures(self, scale: float) -> dict[str, Any]:
        """Under the keys of `--json`, in seconds before scaling."""
        return {
            "iteration_s": round(self.iteration_s / scale, 2),
            "bound_s": round(self.bound_s / scale, 2),
            "of_bound": round(self.bound_s / self.iteration_s, 3),
            "busy": {
                "generation": round(self.generation_s / self.iteration_s, 3),
                **{name: round(seconds / self.iteration_s, 3) for name, seconds in self.train_s.items()},
            },
        }


def way_of(shape: Shape, steps: list[Metrics], *, warm_up: int, iterations: int) -> Way:
    """The `iterations` behind the `warm_up`, by the trainers' metrics of kind train."""
    ends = {name: {each.step: each.at for each in steps if each.policy == name} for name in POLICIES}
    taken_s = max(ends[name][warm_up + iterations] - ends[name][warm_up] for name in POLICIES)
    train_s = dict(zip(POLICIES, (seconds * shape.scale for seconds in shape.train_s), strict=True))
    return Way(iteration_s=taken_s / iterations, generation_s=shape.batch_work_s, train_s=train_s)


async def run_way(shape: Shape, *, lock_step: bool, warm_up: int, iterations: int) -> Way:
    """One whole run. Raises RuntimeError, with its output, if it fails."""
    with tempfile.TemporaryDirectory(prefix="astraflow-multi-policy-") as name:
        folder = Path(name)
        file = folder / "run.toml"
        file.write_text(shape.run_file(warm_up + iterations + (0 if lock_step else DRAIN), lock_step=lock_step))
        async with started(folder, file) as process:
            if await process.wait():
                raise RuntimeError(f"`astraflow up` failed:\n{(folder / 'up.log').read_text()}")
        run = folder / "runs" / RUN
        steps = [each for each in read_metrics(run / "metrics.jsonl") if each.kind == "train"]
        return way_of(shape, steps, warm_up=warm_up, iterations=iterations)


async def measure(shape: Shape, *, warm_up: int, iterations: int, lock_step_iterations: int) -> dict[str, Any]:
    """Both ways, one after the other, under the keys of `--json`."""
    free = await run_way(shape, lock_step=False, warm_up=warm_up, iterations=iterations)
    barrier = await run_way(shape, lock_step=True, warm_up=1, iterations=lock_step_iterations)
    return {
        "astraflow": free.figures(shape.scale),
        "lock_step": barrier.figures(shape.scale),
        "speed_up": round(barrier.iteration_s / free.iteration_s, 2),
        "published": PUBLISHED_S | {"speed_up": round(PUBLISHED_S["lock_step"] / PUBLISHED_S["astraflow"], 2)},
        "scale": shape.scale,
        "iterations": {"astraflow": iterations, "lock_step": lock_step_iterations},
        "load_average": round(os.getloadavg()[0], 1),
    }


def table(results: dict[str, Any]) -> Table:
    """The figures for people."""
    title = f"Seconds per iteration of two policies, ×{1 / results['scale']:.0f} (load {results['load_average']})"
    shown = Table(title=title)
    for column in ("", "iteration", "bound", "of the bound", "engine busy", "trainers busy", "published"):
        shown.add_column(column, justify="right" if column else "left")
    for way in ("lock_step", "astraflow"):
        row, busy = results[way], results[way]["busy"]
        shown.add_row(
            way.replace("_", "-"),
            f"{row['iteration_s']:.1f}",
            f"{row['bound_s']:.1f}",
            f"{row['of_bound']:.3f}",
            f"{busy['generation']:.2f}",
            " ".join(f"{busy[name]:.2f}" for name in POLICIES),
            f"{results['published'][way]:.2f}",
        )
    shown.caption = f"{results['speed_up']} times faster; published: {results['published']['speed_up']} times"
    return shown


def main() -> None:
    defaults = Shape()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=6, help="measured without barriers")
    parser.add_argument("--lock-step-iterations", type=int, default=3, help="measured in lock-step")
    parser.add_argument("--warm-up", type=int, default=2, help="iterations before")
    parser.add_argument("--generation-s", type=float, default=defaults.generation_s, help="work over capacity")
    parser.add_argument("--train-s", type=float, nargs=2, default=defaults.train_s, help="of the two trainers")
    parser.add_argument("--sigma", type=float, default=defaults.sigma, help="of the log-normal lengths")
    parser.add_argument("--scale", type=float, default=defaults.scale, help="by which all of these are multiplied")
    parser.add_argument("--groups", type=int, default=defaults.groups, help="groups per batch")
    parser.add_argument("--slots", type=int, default=defaults.slots, help="of the solver's engine")
    parser.add_argument("--max-staleness", type=int, default=defaults.max_staleness, help="without barriers")
    parser.add_argument("--seed", type=int, default=defaults.seed, help="of the lengths")
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    options = parser.parse_args()
    shape = Shape(
        generation_s=options.generation_s,
        train_s=tuple(options.train_s),
        sigma=options.sigma,
        scale=options.scale,
        groups=options.groups,
        slots=options.slots,
        max_staleness=options.max_staleness,
        seed=options.seed,
    )
    results = asyncio.run(
        measure(
            shape,
            warm_up=options.warm_up,
            iterations=options.iterations,
            lock_step_iterations=options.lock_step_iterations,
        )
    )
    console = Console()
    if options.json:
        console.print_json(json.dumps(results))
    else:
        console.print(table(results))


if __name__ == "__main__":
    main()
