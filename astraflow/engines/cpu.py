"""The in-process engine: continuous batching on torch in a worker thread, streams on the event loop.

It does not download, tokenise or choose versions. The slot decoder serves Llama, Qwen2 and Qwen3; any other causal
language model that transformers knows goes through the fallback, slower.
Invariant: the event loop never computes and is woken at most once per step.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from astraflow.compute import compute_dtype
from astraflow.config import EngineSection
from astraflow.engines.architecture import decoder_spec
from astraflow.engines.base import EngineLoad, EngineRequest, Scored, TokenStream
from astraflow.engines.batching import BROKEN
from astraflow.engines.decoder import SlotDecoder
from astraflow.engines.sequences import BatchModel
from astraflow.engines.shell import EngineShell, EngineState, prepared_beside
from astraflow.engines.streams import EngineReply, EngineStream, RateMeter
from astraflow.engines.worker import BatchSettings, Cancel, Score, StepResult, Stop, Submit, Swap, Worker
from astraflow.errors import EngineError
from astraflow.weights.codec.changes import Change
from astraflow.weights.codec.tensors import HostTensor


class CpuEngine(EngineShell):
    """A `PolicyEngine` over a model's files and tensors, so that a replica needs no folder.

    Args:
        files: the small ones of the model; config.json at least.
        tensors: all of the model's weights; the engine copies them at `start` and then lets go of them.
        version: what these weights are called.
        threads: for torch. Two processes that together use more threads than cores stall each other (facts: up to 28
            times slower): the caller must divide the cores and set OMP_WAIT_POLICY=passive.

    Raises: ConfigError if config.json is missing or unusable. `start` raises WeightsError for weights that don't fit.
    """

    def __init__(
        self,
        files: Mapping[str, bytes],
        tensors: Mapping[str, HostTensor],
        *,
        section: EngineSection | None = None,
        version: int = 0,
        threads: int = 1,
    ) -> None:
        super().__init__(files, section or EngineSection(), version)
        self._tensors: Mapping[str, HostTensor] = tensors
        self._settings = BatchSettings(
            slots=self._section.slots,
            prefill_tokens=self._section.prefill_tokens,
            eos_token_ids=self._facts.eos_token_ids,
            recompute=self._section.on_update == "recompute",
            threads=threads,
        )
        self._running: dict[str, EngineReply] = {}  # every request that the worker knows or will know
        self._swaps: set[asyncio.Future[float]] = set()
        self._scores: set[asyncio.Future[list[float] | None]] = set()
        self._preparing = asyncio.Lock()  # the next version's weights are put together one at a time
        self._rate = RateMeter()
        self._loop: asyncio.AbstractEventLoop | None = None  # None before start
        self._ready: asyncio.Future[None] | None = None
        self._worker: Worker | None = None
        self._model: BatchModel | None = None

    async def start(self) -> None:
        self._begin()
        self._loop = asyncio.get_running_loop()
        self._ready = self._loop.create_future()
        self._worker = Worker(
            self._build,
            self._settings,
            self._version,
            on_ready=lambda model: self._post(self._loaded, model),
            on_result=lambda result: self._post(self._deliver, result),
            on_death=lambda exc: self._post(self._died, exc),
        )
        self._worker.start()
        await self._ready

    def _build(self) -> BatchModel:
        """In the worker thread: the model in memory, by the fastest way that is exact."""
        from astraflow.models.derived import derived_config

        section = self._section
        config = derived_config(self._facts.config)
        spec = decoder_spec(config, self._tensors)
        dtype = compute_dtype(section.dtype)
        if spec is None:
            from astraflow.engines.fallback import TransformersModel

            return TransformersModel(config, self._tensors, context_length=self._facts.context_length, dtype=dtype)
        return SlotDecoder(
            spec,
            self._tensors,
            dtype=dtype,
            max_sequences=section.slots,
            budget_bytes=section.kv_cache_mib << 20,
        )

    def _post(self, callback: Callable[..., None], *args: object) -> None:
        """From the worker thread to the event loop; a closed loop has nobody left who listens."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *args)

    def _loaded(self, model: BatchModel) -> None:
        self._tensors = {}
        self._model = model
        self._context_length = min(self._context_length, model.longest)
        if self._state is EngineState.STARTING:
            self._state = EngineState.SERVING
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(None)

    def _died(self, exc: Exception) -> None:
        error = self._fail(exc)
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(error)
        self._end_all(lambda reply: reply.fail(self._error))

    def _end_all(self, end: Callable[[EngineReply], None]) -> None:
        for reply in self._running.values():
            end(reply)
        self._running.clear()
        for swap in self._swaps:
            if not swap.done():
                swap.set_exception(self._unchanged())
        self._swaps.clear()
        for score in self._scores:
            if not score.done():
                score.set_exception(EngineError(self._error or "the engine was stopped before it had scored a row"))
        self._scores.clear()

    async def stop(self) -> None:
        self._end()
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(EngineError("the engine was stopped while it started"))
        self._end_all(lambda reply: reply.put((), (), self._version, "abort"))
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.order(Stop())
            await asyncio.to_thread(worker.join)
        self._model, self._tensors = None, {}

    def generate_together(self, requests: Sequence[EngineRequest]) -> Sequence[TokenStream]:
        replies = self._replies(requests, self._running)
        worker = self._serving()
        self._running |= {reply.request_id: reply for reply in replies}
        worker.order(Submit(tuple(requests)))
        return [EngineStream(reply, self._drop) for reply in replies]

    def _lacks(self) -> frozenset[str]:
        return frozenset({"presence_penalty", "frequency_penalty"})

    def _serving(self) -> Worker:
        self._check_serving()
        assert self._worker is not None
        return self._worker

    def _deliver(self, result: StepResult) -> None:
        for item in result.sampled:
            reply = self._running.get(item.request_id)
            if reply is None:
                continue
            if item.finish_reason == BROKEN:
                reply.fail(f"version {result.version} gives logits that are not finite")
            else:
                reply.put((item.token,), (item.logprob,), result.version, item.finish_reason)
            if item.finish_reason:
                del self._running[item.request_id]
        for request_id in result.cancelled:
            reply = self._running.pop(request_id, None)
            if reply is not None:
                reply.put((), (), result.version, "abort")
        self._rate.add(sum(item.finish_reason != BROKEN for item in result.sampled))

    def _drop(self, request_id: str) -> None:
        if self._worker is not None and request_id in self._running:
            self._worker.order(Cancel(request_id))

    async def score(self, tokens: NDArray[np.int32], count: int) -> Scored:
        """See `Scoring`."""
        worker = self._serving()
        assert self._loop is not None
        done: asyncio.Future[list[float] | None] = self._loop.create_future()
        self._scores.add(done)
        worker.order(Score(tokens, count, lambda found: self._post(_settle, done, found)))
        try:
            found = await done
        finally:
            self._scores.discard(done)
        if found is None:
            raise EngineError(f"there is no room for a row of {tokens.size} tokens in engine.kv_cache_mib")
        dtype = str(compute_dtype(self._section.dtype)).removeprefix("torch.")
        return Scored(logprobs=np.array(found, np.float32), dtype=dtype)

    def takes_elements(self, name: str) -> bool:
        return True

    async def swap(self, version: int, changes: Mapping[str, Change]) -> float:
        """See `PolicyEngine`. If the caller is cancelled, the swap may still happen."""
        self._serving()
        assert self._model is not None
        assert self._loop is not None
        self._model.check(changes)
        async with self._preparing:
            put = await prepared_beside(self._model.prepare, changes)
            worker = self._serving()
            pause: asyncio.Future[float] = self._loop.create_future()
            self._swaps.add(pause)
            worker.order(Swap(version, put, lambda pause_s: self._post(self._swapped, version, pause, pause_s)))
            try:
                return await pause
            finally:
                self._swaps.discard(pause)

    def _swapped(self, version: int, pause: asyncio.Future[float], pause_s: float) -> None:
        self._version = version
        if not pause.done():
            pause.set_result(pause_s)

    def load(self) -> EngineLoad:
        slots, requests = self._section.slots, len(self._running)
        return EngineLoad(
            slots=slots,
            running=min(slots, requests),
            queued=max(0, requests - slots),
            tokens_per_s=self._rate.per_second(),
            version=self._version,
            error=self._error,
        )


def _settle(future: "asyncio.Future[Any]", result: object) -> None:
    if not future.done():
        future.set_result(result)
