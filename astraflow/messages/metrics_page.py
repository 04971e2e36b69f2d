"""Writes docs/metrics.md from the table of metrics: `python -m astraflow.messages.metrics_page PATH`."""

import sys
from collections.abc import Iterator
from pathlib import Path

from astraflow.messages.metric_names import DATAFLOW, EVAL, GAUGE, ROLLOUT, TABLE, TRAIN, WEIGHTS

SECTIONS = {
    TRAIN: "One message per optimizer step of a policy: `step` counts the steps done, this one included, `version` is"
    " what the step produced; `batch` and `lineage` are set.",
    EVAL: "One message per policy, set and round: `step` and `version` are those that were evaluated. The labels `set`"
    " and `round` say which evaluation it is.",
    ROLLOUT: "From each rollout process, over the time since its previous message.",
    DATAFLOW: "One message per emitted batch of a policy: `step` is the step that it is planned for.",
    WEIGHTS: "From the trainer (publish) and from the policy replicas (apply): `version` is set.",
    GAUGE: "How a process is right now, in its member record: what `status` and `top` show is made of them.",
}
TITLES = {GAUGE: "Gauges"}


def page() -> str:
    """The whole page."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield "<!-- Written by `make docs`; edit astraflow/messages/metric_names.py instead. -->"
    yield "# Metrics"
    yield ""
    yield "Every number that a run reports. `metrics.jsonl` in the run folder has all but the gauges, one line per"
    yield "message, and `Run.metrics()` follows them. A part in angle brackets stands for a name or number of the run."
    yield ""
    for kind, text in SECTIONS.items():
        yield f"## {TITLES.get(kind, f'Kind `{kind}`')}"
        yield ""
        yield text
        yield ""
        yield "| name | unit | meaning |"
        yield "|---|---|---|"
        for row in TABLE.values():
            if row.kind == kind:
                yield f"| `{row.name}` | {row.unit} | {row.meaning} |"
        yield ""


def main() -> None:
    """Write the page to the path in argv[1]."""
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
