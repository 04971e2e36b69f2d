"""The in-process engine: continuous batching on torch in a worker thread, streams on the event loop.

It does not download, tokenise or choose versions. The slot decoder serves Llama, Qwen2 and Qwen3; any other causal
language model that transformers knows goes through the fallback, slower.
Invariant: the event loop never computes and is woken at most once per step.

States: new → starting → serving → stopped, or failed from any of them; only `serving` takes requests.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from astraflow.algos.changes import Change
from astraflow.algos.tensors import HostTensor
from astraflow.compute import compute_dtype
from astraflow.config import EngineSection
from astraflow.engines.architecture import decoder_spec
from astraflow.engines.base import EngineLoad, EngineRequest, Scored, TokenStream
from astraflow.engines.batching import BROKEN
from astraflow.engines.decoder import SlotDecoder
from astraflow.engines.requests import check_request
from astraflow.engines.sequences import BatchModel
from astraflow.engines.streams import RateMeter, Reply, ReplyStream
from astraflow.engines.worker import BatchSettings, Cancel, Score, StepResult, Stop, Submit, Swap, Worker
from astraflow.errors import AstraflowError, EngineError
from astraflow.models.facts import read_facts


class State(StrEnum):
    """See the module's docstring."""

    NEW = "new"
    STARTING = "starting"
    SERVING = "serving"
    STOPPED = "stopped"
    FAILED = "failed"


class CpuEngine:
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
        self._section = section or EngineSection()
        self._facts = read_facts(files)
        self._files = files
        self._tensors: Mapping[str, HostTensor] = tensors
        self._version = version
        longest = self._facts.context_length
        self._context_length = min(self._section.context_length or longest, longest)
        self._settings = BatchSettings(
            slots=self._section.slots,
            prefill_tokens=self._section.prefill_tokens,
            eos_token_ids=self._facts.eos_token_ids,
            recompute=self._section.on_update == "recompute",
            threads=threads,
        )
        self._state = State.NEW
        self._error = ""
        self._replies: dict[str, Reply] = {}  # every request that the worker knows or will know
        self._swaps: set[asyncio.Future[float]] = set()
        self._scores: set[asyncio.Future[list[float] | None]] = set()
        self._preparing = asyncio.Lock()  # the next version's weights are put together one at a time
        self._rate = RateMeter()
        self._loop: asyncio.AbstractEventLoop | None = None  # None before start
        self._ready: asyncio.Future[None] | None = None
        self._worker: Worker | None = None
        self._model: BatchModel | None = None

    @classmethod
    def from_folder(
        cls, folder: Path, *, section: EngineSection | None = None, version: int = 0, threads: int = 1
    ) -> "CpuEngine":
        """An engine over a Hugging Face folder. Raises ConfigError for one that can't be used."""
        from astraflow.models.loading import load_tensors

        files, tensors = load_tensors(folder)
        return cls(files, tensors, section=section, version=version, threads=threads)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self._facts.eos_token_ids

    @property
    def context_length(self) -> int:
        """After `start` also bounded by what the KV memory holds for one request."""
        return self._context_length

    async def start(self) -> None:
        assert self._state is State.NEW, f"engine is {self._state}, an engine starts once"
        self._state = State.STARTING
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
        if self._state is State.STARTING:
            self._state = State.SERVING
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(None)

    def _died(self, exc: Exception) -> None:
        self._state = State.FAILED
        self._error = f"engine failed: {exc!r}"
        error = exc if isinstance(exc, AstraflowError) else EngineError(self._error)
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(error)
        self._end_all(lambda reply: reply.fail(self._error))

    def _end_all(self, end: Callable[[Reply], None]) -> None:
        for reply in self._replies.values():
            end(reply)
        self._replies.clear()
        both: tuple[tuple[set[Any], str], ...] = (
            (self._swaps, "its weights changed"),
            (self._scores, "it had scored a row"),
        )
        for waiting, what in both:
            for future in waiting:
                if not future.done():
                    future.set_exception(EngineError(self._error or f"the engine was stopped before {what}"))
            waiting.clear()

    async def stop(self) -> None:
        if self._state is not State.FAILED:
            self._state = State.STOPPED
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(EngineError("the engine was stopped while it started"))
        self._end_all(lambda reply: reply.put((), (), self._version, "abort"))
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.order(Stop())
            await asyncio.to_thread(worker.join)
        self._model, self._tensors = None, {}

    def generate(self, request: EngineRequest) -> TokenStream:
        return self.generate_together([request])[0]

    def generate_together(self, requests: Sequence[EngineRequest]) -> Sequence[TokenStream]:
        worker = self._serving()
        ids = set(self._replies)
        for request in requests:
            if request.id in ids:
                raise EngineError(f"request {request.id!r} is already running")
            ids.add(request.id)
            check_request(request, vocab_size=self._facts.vocab_size, context_length=self._context_length)
        replies = [Reply(request.id, request.position) for request in requests]
        self._replies |= {reply.request_id: reply for reply in replies}
        worker.order(Submit(tuple(requests)))
        return [ReplyStream(reply, self._drop) for reply in replies]

    def _serving(self) -> Worker:
        if self._state is not State.SERVING or self._worker is None:
            raise EngineError(self._error or f"the engine is {self._state}, it takes requests only while serving")
        return self._worker

    def _deliver(self, result: StepResult) -> None:
        for item in result.sampled:
            reply = self._replies.get(item.request_id)
            if reply is None:
                continue
            if item.finish_reason == BROKEN:
                reply.fail(f"version {result.version} gives logits that are not finite")
            else:
                reply.put((item.token,), (item.logprob,), result.version, item.finish_reason)
            if item.finish_reason:
                del self._replies[item.request_id]
        for request_id in result.cancelled:
            reply = self._replies.pop(request_id, None)
            if reply is not None:
                reply.put((), (), result.version, "abort")
        self._rate.add(sum(item.finish_reason != BROKEN for item in result.sampled))

    async def cancel(self, request_id: str) -> None:
        self._drop(request_id)

    def _drop(self, request_id: str) -> None:
        if self._worker is not None and request_id in self._replies:
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
            put = await self._prepared(changes)
            worker = self._serving()
            pause: asyncio.Future[float] = self._loop.create_future()
            self._swaps.add(pause)
            worker.order(Swap(version, put, lambda pause_s: self._post(self._swapped, version, pause, pause_s)))
            try:
                return await pause
            finally:
                self._swaps.discard(pause)

    async def _prepared(self, changes: Mapping[str, Change]) -> Callable[[], None]:
        """Prepare in a thread; a caller that is cancelled waits for its end, as it reads `changes`."""
        assert self._model is not None
        assert self._loop is not None
        preparing = self._loop.run_in_executor(None, self._model.prepare, changes)
        try:
            return await asyncio.shield(preparing)
        except asyncio.CancelledError:
            await asyncio.wait([preparing])
            raise

    def _swapped(self, version: int, pause: asyncio.Future[float], pause_s: float) -> None:
        self._version = version
        if not pause.done():
            pause.set_result(pause_s)

    def load(self) -> EngineLoad:
        slots, requests = self._section.slots, len(self._replies)
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
