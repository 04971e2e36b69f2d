"""metrics.jsonl as TensorBoard reads it: `[record] tensorboard`.

The folder is a view of metrics.jsonl and nothing else: it is written anew when a recorder starts, so no step is lost or
there twice however often one died, and a run that has ended gets it by being entered again. Curves of one policy lie
over its optimizer steps, one line per lineage; what belongs to no step lies over the seconds since the run began.
"""

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from astraflow.messages import Metrics
from astraflow.messages.metric_names import EVAL, LABEL_SET
from astraflow.view.jsonl_lines import metrics_in

if TYPE_CHECKING:
    from tensorboard.summary.writer.record_writer import RecordWriter

_log = logging.getLogger(__name__)

FOLDER = "tensorboard"
_FILE = "events.out.tfevents.astraflow"
_VERSION = "brain.Event:2"


class TensorBoardFiles:
    """One event file per policy and lineage, behind a metrics.jsonl. Blocking; one call at a time.

    A folder that can't be written ends the copy with a warning, and nothing else.
    """

    def __init__(self, source: Path, *, created_at: float) -> None:
        """Begin anew beside the file. Raises ImportError without tensorboard."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._event, self._summary = Event, Summary
        self._source, self._created_at = source, created_at
        self._folder = source.parent / FOLDER
        self._read_bytes = 0  # of the source
        self._over = False
        self._writers: dict[str, RecordWriter] = {}
        shutil.rmtree(self._folder, ignore_errors=True)

    def catch_up(self) -> None:
        """Copy the lines that are new in the file."""
        if self._over:
            return
        try:
            for metrics in self._new():
                self._add(metrics)
            for writer in self._writers.values():
                writer.flush()
        except OSError as exc:
            self._over = True
            _log.warning("TensorBoard's files can't be written any more", extra={"why": str(exc)})

    def _new(self) -> Iterator[Metrics]:
        with self._source.open("rb") as file:
            file.seek(self._read_bytes)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._read_bytes += len(line)
                if (metrics := metrics_in(line)) is not None:
                    yield metrics

    def _add(self, metrics: Metrics) -> None:
        values = [
            self._summary.Value(tag=_tag(metrics, name), simple_value=value) for name, value in metrics.values.items()
        ]
        step = metrics.step if metrics.step >= 0 else max(0, round(metrics.at - self._created_at))
        event = self._event(wall_time=metrics.at, step=step, summary=self._summary(value=values))
        self._writer(_line(metrics)).write(event.SerializeToString())

    def _writer(self, line: str) -> "RecordWriter":
        from tensorboard.summary.writer.record_writer import RecordWriter

        if line not in self._writers:
            folder = self._folder / line
            folder.mkdir(parents=True, exist_ok=True)
            self._writers[line] = RecordWriter((folder / _FILE).open("wb"))
            self._writers[line].write(self._event(file_version=_VERSION).SerializeToString())
        return self._writers[line]


def _tag(metrics: Metrics, name: str) -> str:
    """TensorBoard groups by what stands before a slash."""
    kind, _, rest = name.partition(".")
    return f"{kind}/{metrics.labels.get(LABEL_SET, '')}.{rest}" if metrics.kind == EVAL else f"{kind}/{rest}"


def _line(metrics: Metrics) -> str:
    """The folder of a curve's points, which is a `run` in TensorBoard's words."""
    if metrics.step < 0:
        return f"over-time/{metrics.policy or metrics.kind}"
    return f"{metrics.policy or 'run'}/lineage-{metrics.lineage}" if metrics.lineage else metrics.policy or "run"
