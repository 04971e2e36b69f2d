"""A run as Prometheus reads it: names, units and help come from the table of metrics.

It follows nothing; whoever does calls `take`, and has a `RunView`. Invariant: labels are names of the run's parts
(policies, actors, queues, sets, reasons), never of tasks or rounds, so that series don't grow with the run's length.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from astraflow import clock
from astraflow.messages import Member, MemberState, Metrics
from astraflow.messages.metric_names import EVAL, FAMILIES, GAUGE, LABEL_SET, ROLLOUT, TABLE, WEIGHTS
from astraflow.view.run_view import RunView

if TYPE_CHECKING:
    from prometheus_client import Metric

_PREFIX = "astraflow"
_UNITS = {"s": "seconds", "B": "bytes", "tokens/s": "tokens_per_second"}
_SHORT = re.compile(r"_(s|bytes|tokens_per_s|seconds)$")  # units as our own names have them
_PLACE = re.compile(r"\.?<(\w+)>|_<(\w+)>")
_OF_A_STEP = {row.name.replace(".", "_") for row in TABLE.values() if row.kind != GAUGE}
_OF_A_PROCESS = (ROLLOUT, WEIGHTS)  # kinds that several actors report side by side
_ISSUED = "issued"

Labels = tuple[tuple[str, str], ...]


def exported_name(row: str) -> str:
    """What Prometheus calls a row of `TABLE`: `train.wait_s` → `astraflow_train_wait_seconds`."""
    bare = _PLACE.sub("", row).replace(".", "_")
    unit = _UNITS.get(TABLE[row].unit, "")
    if TABLE[row].kind == GAUGE and bare in _OF_A_STEP:
        bare += "_now"
    name = f"{_PREFIX}_{_SHORT.sub('', bare) if unit else bare}"
    return f"{name}_{unit}" if unit else name


def _found(name: str) -> tuple[str, Labels] | None:
    """The row of a metric, and what stands in the row's places; None for one that the table doesn't know."""
    if name in TABLE:
        return name, ()
    for family in FAMILIES:
        if (parts := family.parts(name)) is not None:
            places = [a or b for a, b in _PLACE.findall(family.pattern)]
            return family.pattern, tuple(zip(places, parts, strict=True))
    return None


def _labels_of(member: Member) -> Labels:
    return (("actor", member.actor), ("role", str(member.role)), ("policy", member.policy))


class Exposition:
    """The newest value of every metric of one run."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._values: dict[tuple[str, Labels], float] = {}  # by row

    def take(self, metrics: Metrics, producer: str) -> None:
        """A message of METRICS. `producer`: the actor that it is from."""
        labels: Labels = (("policy", metrics.policy),) if metrics.policy else ()
        if metrics.kind in _OF_A_PROCESS:
            labels += (("actor", producer),)
        if metrics.kind == EVAL:
            labels += ((LABEL_SET, metrics.labels.get(LABEL_SET, "")),)
        self._note(metrics.values, labels)

    def _note(self, values: Mapping[str, float], labels: Labels) -> None:
        for name, value in values.items():
            if (found := _found(name)) is not None:
                row, places = found
                self._values[row, labels + places] = value

    def families(self, view: RunView) -> Iterator["Metric"]:
        """All of them with their samples; `view` is the same run."""
        gauges: dict[tuple[str, Labels], float] = dict(self._values)
        for member in view.members.values():
            labels = _labels_of(member)
            for name, value in member.gauges.items():
                if (found := _found(name)) is not None:
                    gauges[found[0], labels + found[1]] = value
        rows: dict[str, list[tuple[Labels, float]]] = {}
        for (row, labels), value in gauges.items():
            rows.setdefault(row, []).append((labels, value))
        for row, samples in sorted(rows.items()):
            yield self._family(exported_name(row), f"{TABLE[row].meaning} ({TABLE[row].unit})", samples)
        yield from self._of_view(view, now=clock.wall())

    def _of_view(self, view: RunView, *, now: float) -> Iterator["Metric"]:
        actors = [(_labels_of(member), member) for member in view.members.values()]
        yield self._family(
            f"{_PREFIX}_actor_ready",
            "1 = the actor works, 0 = it starts or leaves; absent: it is gone",
            [(labels, float(member.state is MemberState.READY)) for labels, member in actors],
        )
        yield self._family(
            f"{_PREFIX}_actor_waiting_seconds",
            "how long the actor has been idle for want of something",
            [(labels, max(now - m.waits_since, 0.0) if m.waits_for else 0.0) for labels, m in actors],
        )
        yield self._family(
            f"{_PREFIX}_queue_messages",
            "messages that nobody has taken yet",
            [((("queue", queue),), float(depth)) for queue, depth in sorted(view.queues.items())],
        )
        yield self._family(
            f"{_PREFIX}_step",
            "optimizer steps that the policy's trainer has done",
            [((("policy", policy),), float(p.step)) for policy, p in sorted(view.progress.items())],
        )
        ended = [
            ((("policy", policy), ("reason", reason)), float(count))
            for policy, ledger in sorted(view.ledgers.items())
            for reason, count in sorted(ledger.counts.items())
            if reason not in (_ISSUED, "open", "buffered")
        ]
        yield self._counter(f"{_PREFIX}_tasks_ended", "tasks by what became of them", ended)
        issued = [((("policy", p),), float(ledger.counts.get(_ISSUED, 0))) for p, ledger in view.ledgers.items()]
        yield self._counter(f"{_PREFIX}_tasks_issued", "tasks that dataflow has issued", issued)
        yield self._family(
            f"{_PREFIX}_problems", "problems that `astraflow status` shows", [((), float(len(view.problems())))]
        )

    def _family(self, name: str, text: str, samples: Iterable[tuple[Labels, float]]) -> "Metric":
        from prometheus_client.core import GaugeMetricFamily

        return self._filled(GaugeMetricFamily(name, text), samples)

    def _counter(self, name: str, text: str, samples: Iterable[tuple[Labels, float]]) -> "Metric":
        from prometheus_client.core import CounterMetricFamily

        return self._filled(CounterMetricFamily(name, text), samples, suffix="_total")

    def _filled(self, family: "Metric", samples: Iterable[tuple[Labels, float]], suffix: str = "") -> "Metric":
        for labels, value in samples:
            family.add_sample(family.name + suffix, {"run": self._run, **dict(labels)}, value)
        return family
