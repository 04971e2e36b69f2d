"""The engine's thread: it owns the model, runs the decode loop and obeys orders between two steps.

It never touches asyncio objects; results leave through two callbacks, once per step at most. A thread that dies says
why through `on_death`, and only then.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue

import numpy as np
import torch
from numpy.typing import NDArray

from astraflow import clock
from astraflow.engines.base import EngineRequest
from astraflow.engines.batching import Batcher, Sampled
from astraflow.engines.scoring import score
from astraflow.engines.sequences import BatchModel

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Submit:
    """Admit these together."""

    requests: Sequence[EngineRequest]


@dataclass(frozen=True)
class Cancel:
    """Forget a request."""

    request_id: str


@dataclass(frozen=True)
class Swap:
    """Put prepared weights in place; `on_done` is called with the seconds that it took."""

    version: int
    put: Callable[[], None]  # if it raises, the thread ends: a mix of two versions is never served
    on_done: Callable[[float], None]


@dataclass(frozen=True)
class Score:
    """Compute logprobs of the last `count` tokens of a row; None if there is no room for it now."""

    tokens: NDArray[np.int32]
    count: int
    on_done: Callable[[list[float] | None], None]


@dataclass(frozen=True)
class Stop:
    """End the thread."""


@dataclass(frozen=True)
class StepResult:
    """What one step sampled, all of it by `version`, and which requests were cancelled before it."""

    version: int
    sampled: Sequence[Sampled]
    cancelled: Sequence[str]


@dataclass(frozen=True)
class BatchSettings:
    """What the worker needs besides the model."""

    slots: int
    prefill_tokens: int
    eos_token_ids: tuple[int, ...]
    recompute: bool  # running sequences' caches, after each swap
    threads: int  # torch threads; the setting belongs to the thread that computes


class Worker:
    """Runs `build` and then the decode loop in a daemon thread.

    Args:
        on_ready: called with the model once it is loaded.
        on_result: called after every step or cancellation.
        on_death: called with the exception that ended the thread; not called after `Stop`.
    """

    def __init__(
        self,
        build: Callable[[], BatchModel],
        settings: BatchSettings,
        version: int,
        *,
        on_ready: Callable[[BatchModel], None],
        on_result: Callable[[StepResult], None],
        on_death: Callable[[Exception], None],
    ) -> None:
        self._build = build
        self._settings = settings
        self._version = version
        self._on_ready, self._on_result, self._on_death = on_ready, on_result, on_death
        self._orders: SimpleQueue[Submit | Cancel | Swap | Score | Stop] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def order(self, order: Submit | Cancel | Swap | Score | Stop) -> None:
        """Obeyed in order, between two steps. From any thread."""
        self._orders.put(order)

    def join(self) -> None:
        """Block until the thread has ended."""
        self._thread.join()

    def _run(self) -> None:
        try:
            torch.set_num_threads(self._settings.threads)
            model = self._build()
            self._on_ready(model)
            self._loop(model)
        except Exception as exc:  # noqa: BLE001 - a thread's boundary, see the docstring
            _log.error("engine thread died", exc_info=exc)
            self._on_death(exc)

    def _loop(self, model: BatchModel) -> None:
        settings = self._settings
        batcher = Batcher(
            model,
            slots=settings.slots,
            prefill_tokens=settings.prefill_tokens,
            eos_token_ids=settings.eos_token_ids,
        )
        while True:
            cancelled: list[str] = []
            for order in self._next_orders(wait=batcher.idle):
                match order:
                    case Submit(requests):
                        for request in requests:
                            batcher.submit(request)
                    case Cancel(request_id):
                        if batcher.cancel(request_id):
                            cancelled.append(request_id)
                    case Swap():
                        self._swap(order, batcher)
                    case Score(tokens, count, on_done):
                        on_done(score(model, tokens, count))
                    case Stop():
                        return
            sampled = [] if batcher.idle else batcher.step()
            if sampled or cancelled:
                self._on_result(StepResult(self._version, sampled, cancelled))

    def _next_orders(self, *, wait: bool) -> list[Submit | Cancel | Swap | Score | Stop]:
        """All orders that are there; with `wait`, at least one."""
        orders = [self._orders.get()] if wait else []
        while True:
            try:
                orders.append(self._orders.get_nowait())
            except Empty:
                return orders

    def _swap(self, order: Swap, batcher: Batcher) -> None:
        started = clock.monotonic()
        # The order of these lines is nobody's to see: results leave this thread after steps only, and if one of them
        # raises the thread ends.
        order.put()
        if self._settings.recompute:
            batcher.recompute()
        self._version = order.version
        order.on_done(clock.monotonic() - started)
