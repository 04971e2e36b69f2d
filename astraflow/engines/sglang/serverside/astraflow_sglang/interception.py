"""Watches a model's loader at work on meta tensors, and keeps its hands off the model's memory.

Not here: when loads are tried (`tracing.py`), memory itself (`memory.py`).
Every operation of this thread is seen. One that writes to the model is not run: a copy of a view of a checkpoint's
tensor is recorded as a window; a constant is padding; anything else is not plain, and raises.
Invariant: after `settle`, a trace without a `why` is exactly what the load would have written of that tensor.
"""

import concurrent.futures
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from astraflow_sglang.memory import address_of
from astraflow_sglang.windows import CopyWindow, overlap, window_of

Described = tuple[torch.dtype, tuple[int, ...]]
_SAME_VALUES = {"aten::clone", "aten::_to_copy", "aten::contiguous"}
_WIDE_FLOATS = {torch.float64, torch.float32, torch.float16, torch.bfloat16}


class NotPlainError(Exception):
    """A load does something else than copying; the message says what."""


@dataclass
class Trace:
    """Where one tensor goes. No windows and no `why`: nowhere on this rank."""

    described: Described
    windows: list[CopyWindow] = field(default_factory=list)
    why: str = ""  # it can't be updated by elements
    refused: bool = False  # the loader doesn't take it at all

    def spoil(self, why: str) -> None:
        """Not by elements."""
        self.windows.clear()
        self.why = self.why or why


class Log:
    """What a load did to the model's memory."""

    def __init__(self, names: Mapping[int, str], repacked: Mapping[int, str]) -> None:
        """Args: both by address: a parameter's name, and how it is kept if not as loaded."""
        self._names, self._repacked = names, repacked
        self._sources: dict[int, tuple[Tensor, Trace]] = {}  # by storage, which the tensor keeps alive
        self._writers: dict[int, list[Trace]] = {}  # by address of what they write to
        self._derived: dict[int, str] = {}

    def source(self, trace: Trace) -> Tensor:
        """A stand-in for the checkpoint's tensor."""
        dtype, shape = trace.described
        source = torch.empty(shape, dtype=dtype, device="meta")
        self._sources[source.untyped_storage()._cdata] = (source, trace)
        return source

    def source_of(self, tensor: Tensor) -> Trace | None:
        """The trace of the checkpoint's tensor that this is a view of."""
        found = self._sources.get(tensor.untyped_storage()._cdata) if tensor.is_meta else None
        return found[1] if found else None

    def parameter_of(self, tensor: Tensor) -> str | None:
        """The parameter whose memory this is a view of."""
        return self._names.get(address_of(tensor))

    def copied(self, target: Tensor, source: Tensor) -> None:
        """Record a window, or why there is none."""
        address, trace = address_of(target), self.source_of(source)
        name = self._names[address]
        if trace is None:
            if address_of(source) == address and _same_view(target, source):
                return
            raise NotPlainError(f"{name} is loaded from computed values")
        self._writers.setdefault(address, []).append(trace)
        if address in self._repacked:
            trace.spoil(f"{name} is {self._repacked[address]}")
        if target.dtype != source.dtype and not {target.dtype, source.dtype} <= _WIDE_FLOATS:
            trace.spoil(f"{name} is {target.dtype}, loaded from {source.dtype}")
        window = window_of(address, target, source) if target.numel() else None
        if target.numel() and window is None:
            trace.spoil(f"its elements don't land one by one in {name}")
        if window and not trace.why:
            trace.windows.append(window)

    def filled(self, target: Tensor) -> None:
        """A constant is put somewhere: padding, unless it meets what was copied before."""
        address = address_of(target)
        where = window_of(address, target, target) if target.numel() else None
        for trace in self._writers.get(address, []) if target.numel() else []:
            if any(each.storage == address and (where is None or overlap(each, where)) for each in trace.windows):
                trace.spoil(f"{self._names[address]} is filled after it was loaded")

    def read(self, tensor: Tensor, operation: str) -> None:
        """A computation looks at a parameter."""
        self._derived.setdefault(address_of(tensor), f"{operation} of {self.parameter_of(tensor)}")

    def settle(self) -> None:
        """What only shows at the end: values made of loaded ones, and places that are loaded twice."""
        for address, what in self._derived.items():
            for trace in self._writers.get(address, []):
                trace.spoil(f"the model derives values from it while loading ({what})")
        for _, trace in self._sources.values():
            windows = sorted(trace.windows, key=lambda window: (window.storage, window.target_start))
            if any(overlap(*pair) for pair in itertools.pairwise(windows)):
                trace.spoil("several of its elements are loaded into one place")


class Interceptor(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation of this thread, and does not run those that write to the model."""

    def __init__(self, log: Log) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._log = log

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name, log = func._schema.name, self._log
        for target in _written(func, args, kwargs):
            if parameter := log.parameter_of(target):
                self._keep_from(parameter, name, target, args)
                return target
            if trace := log.source_of(target):
                trace.spoil(f"its values are changed while loading ({name})")
        if name in _SAME_VALUES and log.source_of(args[0]) and kwargs.get("dtype") in (None, args[0].dtype):
            return args[0].detach()
        if not (func.is_view or name == "aten::detach"):
            for each in tree_leaves((args, kwargs)):
                if isinstance(each, Tensor) and log.parameter_of(each):
                    log.read(each, name)
        return func(*args, **kwargs)

    def _keep_from(self, parameter: str, name: str, target: Tensor, args: Sequence[Any]) -> None:
        if name == "aten::copy_":
            self._log.copied(target, args[1])
        elif name in ("aten::fill_", "aten::zero_") and not any(isinstance(each, Tensor) for each in args[1:]):
            self._log.filled(target)
        else:
            raise NotPlainError(f"loading applies {name} to {parameter}")


class NoDataAssignment(TorchFunctionMode):
    """`parameter.data = …` is no operation that a dispatch mode sees."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == torch.Tensor.data.__set__ and (parameter := self._log.parameter_of(args[0])):  # type: ignore[attr-defined]
            raise NotPlainError(f"loading replaces the data of {parameter}")
        return func(*args, **(kwargs or {}))


def _written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            yield from (each for each in tree_leaves(value) if isinstance(each, Tensor))


def _same_view(one: Tensor, other: Tensor) -> bool:
    return (one.storage_offset(), one.shape, one.stride()) == (other.storage_offset(), other.shape, other.stride())


@contextmanager
def threads_inlined() -> Iterator[None]:
    """Loaders of experts hand copies to thread pools, where no mode of this thread sees them: run those here."""
    original, here = concurrent.futures.ThreadPoolExecutor.submit, threading.get_ident()

    def submit(
        pool: concurrent.futures.ThreadPoolExecutor, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> "concurrent.futures.Future[Any]":
        if threading.get_ident() != here:
            return original(pool, function, *args, **kwargs)
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        try:
            done.set_result(function(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - a future carries it to whoever asks
            done.set_exception(error)
        return done

    concurrent.futures.ThreadPoolExecutor.submit = submit  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        concurrent.futures.ThreadPoolExecutor.submit = original  # type: ignore[method-assign]
