"""reward-curve.png: reward, correct and staleness of every policy over its steps; beside them what says how it trains.

It only draws; matplotlib is imported when it does. A training point is the mean over all training episodes that a
version began, filtered ones too, drawn at that version's step; without recorded episodes it is the batch's mean.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astraflow.messages.metric_names import (
    TRAIN_APPROX_KL,
    TRAIN_ENTROPY,
    TRAIN_GRAD_NORM,
    TRAIN_LOSS,
    TRAIN_REWARD_MEAN,
    TRAIN_STALENESS_MAX,
    TRAIN_STALENESS_MEAN,
)
from astraflow.view.history import EpisodeTotals, History, PolicyHistory, VersionSums

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

_COLOURS = ("#2a6f97", "#c8553d", "#588157", "#8e6c8a", "#b5838d", "#6c757d")
_PANELS = (
    ("loss", TRAIN_LOSS),
    ("entropy\n(nat)", TRAIN_ENTROPY),
    ("KL from the\nbehaviour (nat)", TRAIN_APPROX_KL),
    ("gradient\nnorm", TRAIN_GRAD_NORM),
)
_SMOOTHING = 0.3  # weight of the newest point in the thick line

_Series = list[tuple[int, float]]


def episode_series(history: PolicyHistory, sums: dict[int, VersionSums]) -> tuple[_Series, _Series]:
    """(step, mean reward) and (step, mean correct) of the training episodes, by the step of the oldest version."""
    steps = {metrics.version: metrics.step for metrics in history.train.values()}
    rewards, corrects = [], []
    for version in sorted(sums):
        row, step = sums[version], steps.get(version, version)
        rewards.append((step, row.reward / row.episodes))
        if row.graded:
            corrects.append((step, row.correct / row.graded))
    return sorted(rewards), sorted(corrects)


def length_series(history: PolicyHistory, sums: dict[int, VersionSums]) -> _Series:
    """(step, mean tokens of a trajectory) of the training episodes, likewise."""
    steps = {metrics.version: metrics.step for metrics in history.train.values()}
    return sorted((steps.get(version, version), row.tokens / row.episodes) for version, row in sums.items())


def smooth(series: _Series, *, weight: float = _SMOOTHING) -> _Series:
    """Exponential moving average with bias correction: the first point is itself. NaN and inf are left out."""
    average, mass, out = 0.0, 0.0, []
    for step, value in series:
        if math.isfinite(value):
            average = (1 - weight) * average + weight * value
            mass = (1 - weight) * mass + weight
            out.append((step, average / mass))
    return out


def draw_curves(path: Path, *, run: str, history: History, totals: EpisodeTotals) -> None:
    """Write the picture. Raises ImportError without matplotlib, OSError if it can't be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 8.2), dpi=110, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    halves: Any = figure.subfigures(1, 2, width_ratios=(9, 4))
    left, right = halves
    reward, correct, staleness = left.subplots(3, 1, sharex=True, height_ratios=(5, 5, 2))
    figure.suptitle(f"AstraFlow · {run}", x=0.02, ha="left", fontsize=13, fontweight="bold")
    for number, name in enumerate(sorted(history.policies)):
        policy, colour = history.policies[name], _COLOURS[number % len(_COLOURS)]
        rewards, corrects = episode_series(policy, totals.by_version.get(name, {}))
        _training(reward, rewards or policy.series(TRAIN_REWARD_MEAN), colour, f"{name}, training")
        _training(correct, corrects, colour, f"{name}, training")
        _evaluations(reward, policy, colour, name, lambda point: point.reward)
        _evaluations(correct, policy, colour, name, lambda point: point.correct)
        _passes(correct, policy, colour, name)
        _staleness(staleness, policy, colour)
    _training_panels(right, history, totals)
    _finish(reward, "reward")
    _finish(correct, "correct", limits=(-0.03, 1.03))
    _finish(staleness, "staleness\n(mean, max)", legend=False)
    staleness.set_ylim(bottom=0, top=max(1.2, staleness.get_ylim()[1]))
    _steps_below(staleness)
    figure.savefig(path)


def _training_panels(figure: "SubFigure", history: History, totals: EpisodeTotals) -> None:
    """What a person looks at when the reward doesn't do what it should."""
    panels = figure.subplots(len(_PANELS) + 1, 1, sharex=True)
    for number, name in enumerate(sorted(history.policies)):
        policy, colour = history.policies[name], _COLOURS[number % len(_COLOURS)]
        lengths = length_series(policy, totals.by_version.get(name, {}))
        for axes, series in zip(panels, (lengths, *(policy.series(metric) for _, metric in _PANELS)), strict=True):
            _training(axes, series, colour, name)
    for axes, label in zip(panels, ("tokens of\na reply", *(label for label, _ in _PANELS)), strict=True):
        _finish(axes, label, legend=False)
    _steps_below(panels[-1])


def _steps_below(axes: Any) -> None:
    axes.set_xlabel("optimizer step")
    axes.set_xlim(left=min(0.0, axes.get_xlim()[0]), right=max(1.0, axes.get_xlim()[1]))
    axes.xaxis.get_major_locator().set_params(integer=True)


def _training(axes: "Axes", series: _Series, colour: str, label: str) -> None:
    if not series:
        return
    axes.plot(*_columns(series), color=colour, alpha=0.3, linewidth=0.9)
    axes.plot(*_columns(smooth(series)), color=colour, linewidth=2.0, label=label)


def _evaluations(
    axes: "Axes", policy: PolicyHistory, colour: str, name: str, value: Callable[[Any], float | None]
) -> None:
    from matplotlib.patheffects import Normal, Stroke

    for number, set_name in enumerate(sorted(policy.evals)):
        points = policy.evals[set_name]
        series = [(step, known) for step in sorted(points) if (known := value(points[step])) is not None]
        if not series:
            continue
        axes.plot(
            *_columns(series),
            color=colour,
            linestyle=(0, (4, 2)),
            linewidth=1.0,
            marker="DosV^"[number % 5],
            markersize=6,
            markerfacecolor="white",
            markeredgewidth=1.5,
            label=f"{name}, {set_name} (eval)",
        )
        for step, known in {series[0], series[-1]}:
            text = axes.annotate(
                f"{known:.2f}", (step, known), xytext=(0, 9), textcoords="offset points", ha="center", color=colour
            )
            text.set_path_effects([Stroke(linewidth=3, foreground="white"), Normal()])


def _passes(axes: "Axes", policy: PolicyHistory, colour: str, name: str) -> None:
    """pass@k of the largest k that a set has."""
    for set_name in sorted(policy.evals):
        points = policy.evals[set_name]
        largest = max((int(k) for point in points.values() for k in point.pass_at), default=0)
        series = [(s, points[s].pass_at[str(largest)]) for s in sorted(points) if str(largest) in points[s].pass_at]
        if series:
            label = f"{name}, {set_name} pass@{largest}"
            axes.plot(*_columns(series), color=colour, linestyle=":", linewidth=1.2, marker=".", label=label)


def _staleness(axes: "Axes", policy: PolicyHistory, colour: str) -> None:
    means, maxima = policy.series(TRAIN_STALENESS_MEAN), policy.series(TRAIN_STALENESS_MAX)
    if maxima:
        axes.step(*_columns(maxima), where="mid", color=colour, alpha=0.35, linewidth=1.0)
    if means:
        axes.plot(*_columns(means), color=colour, linewidth=1.4)


def _finish(axes: "Axes", label: str, *, limits: tuple[float, float] | None = None, legend: bool = True) -> None:
    axes.set_ylabel(label)
    axes.grid(True, axis="y", color="#e5e5e5", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=0.03, y=0.12)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if limits:
        axes.set_ylim(*limits)
    if not axes.has_data():
        axes.text(0.5, 0.5, "nothing recorded", transform=axes.transAxes, ha="center", color="#999999")
        axes.set_yticks([])
    elif legend:
        axes.legend(frameon=False, fontsize=9, loc="best")


def _columns(series: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [step for step, _ in series], [value for _, value in series]
