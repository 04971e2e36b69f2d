"""What data algorithms save: selectors, training order, replay and redundant members, through dataflow's real core.

    python benchmarks/data_algorithms.py [--steps 150] [--seeds 3] [--json] [--plot data-algorithms.png]

The policy, the rollouts and the trainer are simulated in virtual time (`data_simulation.py` says how); what is issued,
filtered, ordered, replayed and cancelled is decided by `astraflow.dataflow` itself, with its defaults. All figures are
means over the seeds; `rollouts_to_goal` is null if one of them didn't get there.

The order matters where groups of different ages wait for a slow trainer, so that experiment mixes two sources, one with
episodes six times as long, and filters nothing. Where all groups are about as old when they close, whatever the order,
credit at admission leaves it nothing to gain.
"""

import argparse
import json
import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from data_simulation import POLICY, TASKS, Simulation
from rich.console import Console
from rich.table import Table

from astraflow.config import (
    DataflowSection,
    EnvSection,
    PolicySection,
    ReplaySection,
    RunConfig,
    RunSection,
    SelectSection,
    SourceSection,
    TrainerSection,
)

SELECTORS = ("accept-all", "filter-solved", "pools", "curriculum", "greso")
REPLAYS = ("none", "latest", "uniform", "prioritized")
GOAL = 0.75  # success on the learnable tasks; it begins at 0.36

Curve = list[tuple[int, float]]  # rollouts, success
Found = dict[str, dict[str, dict[str, float | None]]]  # experiment → variant → figures


def config_of(
    *,
    steps: int,
    seed: int,
    select: str = "accept-all",
    order: str = "edf",
    replay: str = "none",
    extra: int = 0,
    max_staleness: int = 2,
    sources: tuple[str, ...] = ("train",),
    filters: tuple[str, ...] = ("zero-advantage",),
) -> RunConfig:
    """One policy on the synthetic tasks, groups and batches of eight."""
    again = ReplaySection(kind=replay, share=0.5, max_uses=3, max_staleness=8)
    trainer = TrainerSection(
        steps=steps, batch_groups=8, max_staleness=max_staleness, prefetch=1, replay=again, filters=filters
    )
    source = SourceSection(
        env="math", group_size=8, extra=extra, size=TASKS, shuffle=True, select=SelectSection(kind=select)
    )
    return RunConfig(
        run=RunSection(name="sim", seed=seed),
        policies={POLICY: PolicySection(model="toy", trainer=trainer)},
        envs={"math": EnvSection(kind="toy")},
        sources=dict.fromkeys(sources, source),
        dataflow=DataflowSection(order=order, task_deadline_s=1e9),
    )


def rollouts_to(goal: float, curve: Curve) -> float | None:
    """Rollouts after which success was at `goal`; None: it never was."""
    return next((float(rollouts) for rollouts, success in curve if success >= goal), None)


def figures_of(run: Simulation, steps: int) -> dict[str, float | None]:
    """What a run cost and what it taught."""
    ledger = run.core.ledger(POLICY)
    useful = len(run.learner.trained)  # distinct groups that were trained
    closed = ledger["issued"] - ledger.get("redundant", 0)
    return {
        "rollouts": run.rollouts,
        "useful_groups": useful,
        "rollouts_per_useful_group": run.rollouts / useful,
        "rollouts_per_step": run.rollouts / steps,
        "rollouts_to_goal": rollouts_to(GOAL, run.curve),
        "zero_variance_share": ledger.get("zero-advantage", 0) / closed,
        "stale_share": ledger.get("stale", 0) / closed,
        "cancelled_share": run.cancelled / run.rollouts,
        "long_share": sum("/long/" in group for group in run.learner.trained) / useful,
        "mean_staleness_steps": sum(run.staleness) / len(run.staleness),
        "seconds_per_step": run.now / steps,
        "success": run.success(),
    }


def play(seed: int, steps: int, world: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[dict[str, Any], Curve]:
    """One run: its figures and its curve."""
    run = Simulation(config_of(steps=steps, seed=seed, **config), seed=seed, **world).run()
    return figures_of(run, steps), run.curve


def mean(values: list[float | None]) -> float | None:
    """None if one is missing."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def plans() -> dict[str, dict[str, tuple[dict[str, Any], dict[str, Any]]]]:
    """Experiment → variant → (the world, the run file)."""
    mixed = {"sigma": 0.3, "slots": 512, "train_s": 4.0, "median_s": {"short": 1.0, "long": 6.0}}
    slow = {"sigma": 1.2, "slots": 192, "train_s": 1.0}  # a long tail, and a trainer that is fast
    return {
        "select": {name: ({}, {"select": name}) for name in SELECTORS},
        "order": {
            f"{order}-{bound}": (
                mixed,
                {"order": order, "max_staleness": bound, "sources": ("short", "long"), "filters": ()},
            )
            for bound in (2, 4, 8)
            for order in ("fifo", "edf")
        },
        "replay": {name: ({}, {"replay": name, "select": "greso"}) for name in REPLAYS},
        "extra": {str(k): (slow, {"extra": k, "select": "greso", "max_staleness": 0}) for k in (0, 1, 2)},
    }


def measure(seeds: int, steps: int, only: str, jobs: int) -> tuple[Found, dict[str, dict[str, Curve]]]:
    """All figures; and the learning curve of each variant's first seed."""
    found: Found = {}
    curves: dict[str, dict[str, Curve]] = {}
    with ProcessPoolExecutor(jobs) as pool:
        runs = {
            (experiment, variant): [pool.submit(play, seed, steps, *plan) for seed in range(seeds)]
            for experiment, variants in plans().items()
            if only in ("", experiment)
            for variant, plan in variants.items()
        }
        for (experiment, variant), futures in runs.items():
            each = [future.result() for future in futures]
            names = each[0][0]
            figures = {name: mean([one[name] for one, _ in each]) for name in names}
            found.setdefault(experiment, {})[variant] = figures
            curves.setdefault(experiment, {})[variant] = each[0][1]
    return found, curves


COLUMNS = {
    "select": ("rollouts_per_useful_group", "zero_variance_share", "stale_share", "rollouts_to_goal", "success"),
    "order": ("stale_share", "rollouts_per_useful_group", "long_share", "mean_staleness_steps", "seconds_per_step"),
    "replay": ("rollouts_per_step", "rollouts_to_goal", "mean_staleness_steps", "seconds_per_step", "success"),
    "extra": ("seconds_per_step", "cancelled_share", "rollouts_per_step", "success"),
}


def show(found: Found) -> None:
    """A table per experiment."""
    for experiment, variants in found.items():
        table = Table(experiment, *(name.replace("_", " ") for name in COLUMNS[experiment]))
        for variant, figures in variants.items():
            row = [figures[name] for name in COLUMNS[experiment]]
            table.add_row(variant, *("-" if value is None else f"{value:.4g}" for value in row))
        Console().print(table)


def plot(found: Found, curves: Mapping[str, Mapping[str, Curve]], path: str) -> None:
    """Learning over rollouts of selectors and replays, and a bar chart for the other experiments."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(found), figsize=(5.5 * len(found), 4), squeeze=False)
    bars = {"order": "stale_share", "extra": "seconds_per_step"}
    for axis, (experiment, variants) in zip(axes[0], found.items(), strict=True):
        if experiment in bars:
            name = bars[experiment]
            axis.bar(list(variants), [figures[name] or 0 for figures in variants.values()])
            axis.set(title=f"{experiment}: {name.replace('_', ' ')}")
            continue
        for variant, curve in curves[experiment].items():
            axis.plot(*zip(*curve, strict=True), label=variant)
        axis.set(title=f"{experiment}: success on learnable tasks", xlabel="rollouts")
        axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=150, help="optimizer steps of each run")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each variant")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--only", default="", choices=["", *COLUMNS], help="one experiment instead of all")
    parser.add_argument("--plot", default="", help="write a picture there")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time")
    arguments = parser.parse_args()
    found, curves = measure(arguments.seeds, arguments.steps, arguments.only, arguments.jobs)
    if arguments.json:
        print(json.dumps(found, indent=1))  # noqa: T201 - what the flag asks for
    else:
        show(found)
    if arguments.plot:
        plot(found, curves, arguments.plot)


if __name__ == "__main__":
    main()
