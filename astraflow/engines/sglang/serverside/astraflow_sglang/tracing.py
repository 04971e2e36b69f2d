"""How a model's own loader lays out a checkpoint's tensors: found by running it once on tensors without data.

`model.load_weights` fuses, shards, pads and renames, for every model in its own way; so it is asked, not imitated.
Not here: what counts as plain (`interception.py`), values (`writing.py`).
Invariant: tracing leaves the model's memory and its parameters as they were. Meta tensors have no data, so a write that
isn't intercepted raises.
"""

import weakref
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from astraflow_sglang.interception import (
    Described,
    Interceptor,
    Log,
    NoDataAssignment,
    NotPlainError,
    Trace,
    threads_inlined,
)
from astraflow_sglang.memory import Place, address_of, held_parameters, model_tensors, places_of, put_back
from astraflow_sglang.memory import repacked_storages as repacked_of

MAX_FAILED_LOADS = 256  # a load takes milliseconds; a model of which nothing can be traced must not take minutes


class _Known:
    """Traces of one model, true as long as its tensors stay where they are."""

    def __init__(self, places: dict[str, Place]) -> None:
        self.places = places
        self.traces: dict[str, Trace] = {}


_known: "weakref.WeakKeyDictionary[nn.Module, _Known]" = weakref.WeakKeyDictionary()


def traces_of(model: nn.Module, tensors: Mapping[str, Described]) -> dict[str, Trace]:
    """One for each of the tensors; what was asked before costs no load."""
    places = places_of(model)
    known = _known.get(model)
    if known is None or known.places != places:
        known = _known[model] = _Known(places)
    traces = known.traces
    if missing := [name for name in tensors if name not in traces or traces[name].described != tensors[name]]:
        traces |= _Tracer(model).run({name: tensors[name] for name in missing})
    return {name: traces[name] for name in tensors}


class _Tracer:
    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._failed_loads = 0
        self._repacked = repacked_of(model)
        self._names: dict[int, str] = {}  # by address
        for name, tensor in model_tensors(model):
            self._names.setdefault(address_of(tensor), name)

    def run(self, tensors: Mapping[str, Described]) -> dict[str, Trace]:
        """Loads all at once; where that raises, in halves, so that few bad names cost few loads."""
        traces = {name: Trace(described) for name, described in tensors.items()}
        if self._failed_loads >= MAX_FAILED_LOADS:
            for trace in traces.values():
                trace.spoil(f"not tried after {MAX_FAILED_LOADS} loads that failed")
            return traces
        error = self._load(traces)
        if error is None:
            return traces
        self._failed_loads += 1
        if len(tensors) == 1:
            return {name: _failed(described, error) for name, described in tensors.items()}
        names = list(tensors)
        halves = (names[: len(names) // 2], names[len(names) // 2 :])
        return {
            name: trace for half in halves for name, trace in self.run({each: tensors[each] for each in half}).items()
        }

    def _load(self, traces: Mapping[str, Trace]) -> Exception | None:
        log = Log(self._names, self._repacked)
        held = held_parameters(self._model)

        def sources() -> Iterator[tuple[str, Tensor]]:
            for name, trace in traces.items():
                yield name, log.source(trace)

        error: Exception | None = None
        try:
            with torch.no_grad(), threads_inlined(), NoDataAssignment(log), Interceptor(log):
                self._model.load_weights(sources())  # type: ignore[operator]
        except Exception as raised:  # noqa: BLE001 - whatever a loader raises is the answer
            error = raised
        if moved := put_back(held):
            return NotPlainError(f"loading replaces parameter {moved}")
        if error is None:
            log.settle()
        return error


def _failed(described: Described, error: Exception) -> Trace:
    trace = Trace(described)
    plain = isinstance(error, NotPlainError)
    trace.spoil(f"{error}" if plain else f"{type(error).__name__}: {error}")
    # A loader that wants data (`.item()`, a copy to where we don't look) fails on a meta tensor, not on a real one.
    trace.refused = not plain and not isinstance(error, NotImplementedError) and "meta" not in f"{error}"
    return trace
