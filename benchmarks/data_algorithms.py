"""What data algorithms save: selectors, training order, replay and redundant members, through dataflow's real core.

    python benchmarks/data_algorithms.py [--steps 150] [--seeds 3] [--json] [--plot data-algorithms.png]

The policy, the rollouts and the trainer are simulated in virtual time (`data_simulation.py` says how); what is issued,
filtered, ordered, replayed and cancelled is decided by `astraflow.algos` itself. All figures are means over the seeds.
"""

import argparse
import json
from collections.abc import Mapping
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


def config_of(
    *, steps: int, seed: int, select: str = "accept-all", order: str = "edf", replay: str = "none", extra: int = 0,
    max_staleness: int = 2,
) -> RunConfig:  # fmt: skip
    """One policy on the synthetic tasks, groups and batches of eight, dynamic sampling."""
    again = ReplaySection(kind=replay, share=0.5, max_uses=3, max_staleness=8)
    trainer = TrainerSection(steps=steps, batch_groups=8, max_staleness=max_staleness, prefetch=1, replay=again)
    source = SourceSection(
        env="math", group_size=8, extra=extra, size=TASKS, shuffle=True, select=SelectSection(kind=select)
    )
    return RunConfig(
        run=RunSection(name="sim", seed=seed),
        policies={POLICY: PolicySection(model="toy", trainer=trainer)},
        envs={"math": EnvSection(kind="toy")},
        sources={"train": source},
        dataflow=DataflowSection(order=order, task_deadline_s=1e9),
    )


def figures_of(run: Simulation, steps: int) -> dict[str, float]:
    """What a run cost and what it taught."""
    ledger = run.core.ledger(POLICY)
    useful = len(run.learner.trained)  # distinct groups that were trained
    closed = ledger["issued"] - ledger.get("redundant", 0)
    return {
        "rollouts": run.rollouts,
        "useful_groups": useful,
        "rollouts_per_useful_group": run.rollouts / useful,
        "rollouts_per_step": run.rollouts / steps,
        "zero_variance_share": ledger.get("zero-advantage", 0) / closed,
        "stale_share": ledger.get("stale", 0) / closed,
        "cancelled_share": run.cancelled / run.rollouts,
        "mean_staleness_steps": sum(run.staleness) / len(run.staleness),
        "seconds_per_step": run.now / steps,
        "success": run.success(),
    }


def mean_over_seeds(seeds: int, steps: int, world: Mapping[str, Any], **config: Any) -> tuple[dict[str, float], Any]:
    """Figures, and the curve of the first seed."""
    runs = [Simulation(config_of(steps=steps, seed=seed, **config), seed=seed, **world).run() for seed in range(seeds)]
    each = [figures_of(run, steps) for run in runs]
    return {name: sum(one[name] for one in each) / seeds for name in each[0]}, runs[0].curve


def measure(seeds: int, steps: int, only: str) -> tuple[dict[str, dict[str, dict[str, float]]], dict[str, Any]]:
    """Experiment → variant → figures; and the learning curves of the selectors."""
    busy = {"sigma": 1.5, "slots": 256, "train_s": 6.0}  # groups wait for the trainer, so that their order matters
    slow = {"sigma": 1.2, "slots": 192, "train_s": 1.0}  # a long tail, and a trainer that is fast
    plans: dict[str, dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
        "select": {name: ({}, {"select": name}) for name in SELECTORS},
        "order": {name: (busy, {"order": name, "select": "greso", "max_staleness": 3}) for name in ("fifo", "edf")},
        "replay": {name: ({}, {"replay": name, "select": "greso"}) for name in REPLAYS},
        "extra": {str(k): (slow, {"extra": k, "select": "greso", "max_staleness": 0}) for k in (0, 1, 2)},
    }
    found: dict[str, dict[str, dict[str, float]]] = {}
    curves = {}
    for experiment, variants in plans.items():
        if only in ("", experiment):
            found[experiment] = {}
            for name, (world, config) in variants.items():
                found[experiment][name], curve = mean_over_seeds(seeds, steps, world, **config)
                if experiment == "select":
                    curves[name] = curve
    return found, curves


COLUMNS = {
    "select": ("rollouts_per_useful_group", "zero_variance_share", "rollouts", "success"),
    "order": ("stale_share", "mean_staleness_steps", "rollouts_per_step", "seconds_per_step", "success"),
    "replay": ("rollouts_per_step", "mean_staleness_steps", "seconds_per_step", "success"),
    "extra": ("seconds_per_step", "cancelled_share", "rollouts_per_step", "success"),
}


def show(found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    """A table per experiment."""
    for experiment, variants in found.items():
        table = Table(experiment, *(name.replace("_", " ") for name in COLUMNS[experiment]))
        for variant, figures in variants.items():
            table.add_row(variant, *(f"{figures[name]:.4g}" for name in COLUMNS[experiment]))
        Console().print(table)


def plot(found: Mapping[str, Mapping[str, Mapping[str, float]]], curves: Mapping[str, Any], path: str) -> None:
    """Learning over rollouts, and a bar chart for each other experiment."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(11, 7))
    for select, curve in curves.items():
        axes[0][0].plot([x for x, _ in curve], [y for _, y in curve], label=select)
    axes[0][0].set(title="selectors: success on learnable tasks", xlabel="rollouts")
    axes[0][0].legend()
    bars = (("order", "stale_share", axes[0][1]), ("replay", "rollouts_per_step", axes[1][0]))
    for experiment, name, axis in (*bars, ("extra", "seconds_per_step", axes[1][1])):
        variants = found[experiment]
        axis.bar(list(variants), [figures[name] for figures in variants.values()])
        axis.set(title=f"{experiment}: {name.replace('_', ' ')}")
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=150, help="optimizer steps of each run")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each variant")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--only", default="", choices=["", *COLUMNS], help="one experiment instead of all")
    parser.add_argument("--plot", default="", help="write a picture there")
    arguments = parser.parse_args()
    found, curves = measure(arguments.seeds, arguments.steps, arguments.only)
    if arguments.json:
        print(json.dumps(found, indent=1))  # noqa: T201 - what the flag asks for
    else:
        show(found)
    if arguments.plot and not arguments.only:
        plot(found, curves, arguments.plot)


if __name__ == "__main__":
    main()
