"""A deterministic engine without a model: for chaos tests and benchmarks of the pipeline around it.

It does not learn, and its tokens don't depend on the weights: token c of a completion is a pure function of
(seed, c, the request's original prompt), so a continuation elsewhere yields the undisturbed completion's tokens, and
`on_update` makes no difference: there is nothing to compute anew.
Everything runs on the event loop, driven by timers; a step costs a few microseconds per request.
"""

import asyncio
import json
import zlib
from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from astraflow.config import EngineSection
from astraflow.engines.base import EngineLoad, EngineRequest, TokenStream
from astraflow.engines.keyed import keyed_bits
from astraflow.engines.requests import check_request
from astraflow.engines.streams import EngineReply, EngineStream, RateMeter
from astraflow.errors import EngineError, WeightsError
from astraflow.models.toy import TOY_TENSOR
from astraflow.weights.codec.changes import Change, ChangedElements
from astraflow.weights.codec.tensors import HostTensor

MIN_LENGTH, MAX_LENGTH = 4, 27  # completion tokens, the end token included
_LACKS = frozenset({"min_tokens", "presence_penalty", "frequency_penalty"})
_CATCH_UP_S = 1.0  # a loop that was late for longer has lost the steps before
_FREE_STEP_TOKENS = 1024  # per request and step when steps take no time: few turns of the event loop


def toy_completion(
    prompt_tokens: NDArray[np.int32], seed: int, first: int, count: int, *, vocab_size: int, eos: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Tokens [first, first + count) of the completion of an original prompt, and their logprobs in [-1, 0).

    The completion's own length is 4 to 27 tokens and ends with `eos`; beyond it, for requests that ignore `eos`, it
    goes on with ordinary tokens. Returns: int32[count], float32[count].
    """
    key = seed ^ (zlib.crc32(np.ascontiguousarray(prompt_tokens, dtype="<i4").tobytes()) << 20)
    bits = keyed_bits(key, np.arange(first, first + count, dtype=np.int64))
    length = MIN_LENGTH + int(keyed_bits(key, np.array([-1]))[0]) % (MAX_LENGTH - MIN_LENGTH + 1)
    tokens = (bits % np.uint64(vocab_size)).astype(np.int32)
    tokens[tokens == eos] = (eos + 1) % vocab_size
    if first < length <= first + count:
        tokens[length - 1 - first] = eos
    logprobs = -(1 + (bits >> np.uint64(40)) % np.uint64(1000)).astype(np.float32) / np.float32(1000)
    return tokens, logprobs


@dataclass
class _ToyCompletion:
    """A request and the completion that it will have got."""

    reply: EngineReply
    tokens: "array[int]"
    logprobs: "array[float]"
    finish_reason: str
    sent: int = 0


class ToyEngine:
    """The `PolicyEngine` of the toy model. Raises EngineError for files of another model."""

    def __init__(
        self,
        files: Mapping[str, bytes],
        tensors: Mapping[str, HostTensor],
        *,
        section: EngineSection,
        version: int = 0,
    ) -> None:
        config = json.loads(files["config.json"])
        if config.get("model_type") != "toy":
            raise EngineError(f"toy engine got a model of type {config.get('model_type')!r}, expected 'toy'")
        self._vocab_size = int(config["vocab_size"])
        self._eos = int(config["eos_token_id"])
        self._context_length = section.context_length or int(config["max_position_embeddings"])
        self._check(tensors, self._vocab_size)
        self.weights = np.frombuffer(tensors[TOY_TENSOR].data, dtype="<f4").copy()
        self._version = version
        self._slots = section.slots
        self._step_s = section.toy_step_s
        self._due = 0.0  # loop time of the next step, if steps take time
        self._step_tokens = 1 if section.toy_step_s else _FREE_STEP_TOKENS
        self._running: dict[str, _ToyCompletion] = {}
        self._waiting: deque[_ToyCompletion] = deque()
        self._rate = RateMeter()
        self._timer: asyncio.Handle | None = None
        self._serving = False

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return (self._eos,)

    @property
    def context_length(self) -> int:
        return self._context_length

    async def start(self) -> None:
        self._serving = True

    async def stop(self) -> None:
        self._serving = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for item in [*self._running.values(), *self._waiting]:
            item.reply.put((), (), self._version, "abort")
        self._running.clear()
        self._waiting.clear()

    def generate(self, request: EngineRequest) -> TokenStream:
        return self.generate_together([request])[0]

    def generate_together(self, requests: Sequence[EngineRequest]) -> Sequence[TokenStream]:
        taken = set(self._running) | {item.reply.request_id for item in self._waiting}
        for request in requests:
            if not self._serving:
                raise EngineError(f"request {request.id!r}: the toy engine is not serving; call start() first")
            if request.id in taken:
                raise EngineError(f"request {request.id!r} is already running")
            taken.add(request.id)
            check_request(
                request,
                vocab_size=self._vocab_size,
                context_length=self._context_length,
                lacks=_LACKS,
                kind="toy",
            )
        items = [self._plan(request) for request in requests]
        self._waiting.extend(items)
        self._schedule()
        return [EngineStream(item.reply, self._drop) for item in items]

    def _plan(self, request: EngineRequest) -> _ToyCompletion:
        """The whole completion at once: what a later step hands out is only a slice."""
        prompt = request.prompt_tokens[: request.prompt_tokens.size - request.position]
        sampling = request.sampling
        tokens_T, logprobs_T = toy_completion(
            prompt,
            request.seed,
            request.position,
            sampling.max_new_tokens,
            vocab_size=self._vocab_size,
            eos=self._eos,
        )
        stop_ids = [*sampling.stop_token_ids, *(() if sampling.ignore_eos else (self._eos,))]
        ends = [int(found[0]) + 1 for token in stop_ids if (found := np.flatnonzero(tokens_T == token)).size]
        end = min(ends, default=tokens_T.size)
        return _ToyCompletion(
            EngineReply(request.id, request.position),
            array("i", tokens_T[:end].tobytes()),
            array("f", logprobs_T[:end].tobytes()),
            "stop" if ends else "length",
        )

    def _schedule(self) -> None:
        """A step every `toy_step_s`: one that the loop was late for is made up for by the next ones."""
        if self._timer is None and (self._running or self._waiting):
            loop = asyncio.get_running_loop()
            before = max(self._due, loop.time() - _CATCH_UP_S) if self._running else loop.time()
            self._due = before + self._step_s
            self._timer = loop.call_at(self._due, self._step) if self._step_s else loop.call_soon(self._step)

    def _step(self) -> None:
        self._timer = None
        while self._waiting and len(self._running) < self._slots:
            item = self._waiting.popleft()
            self._running[item.reply.request_id] = item
        sent = 0
        for item in list(self._running.values()):
            end = min(item.sent + self._step_tokens, len(item.tokens))
            finished = item.finish_reason if end == len(item.tokens) else ""
            item.reply.put(item.tokens[item.sent : end], item.logprobs[item.sent : end], self._version, finished)
            sent += end - item.sent
            item.sent = end
            if finished:
                del self._running[item.reply.request_id]
        self._rate.add(sent)
        self._schedule()

    async def cancel(self, request_id: str) -> None:
        self._drop(request_id)

    def _drop(self, request_id: str) -> None:
        item = self._running.pop(request_id, None)
        if item is None:
            item = next((waiting for waiting in self._waiting if waiting.reply.request_id == request_id), None)
            if item is None:
                return
            self._waiting.remove(item)
        item.reply.put((), (), self._version, "abort")

    def takes_elements(self, name: str) -> bool:
        return True

    async def swap(self, version: int, changes: Mapping[str, Change]) -> float:
        self._check(changes, self._vocab_size)
        match changes.get(TOY_TENSOR):
            case ChangedElements(positions=positions, values=values):
                self.weights[positions] = values.view("<f4")
            case HostTensor(data=data):
                self.weights[:] = np.frombuffer(data, dtype="<f4")
        self._version = version
        return 0.0

    @staticmethod
    def _check(changes: Mapping[str, Change], size: int) -> None:
        for name, tensor in changes.items():
            if (name, tensor.dtype, tensor.shape) != (TOY_TENSOR, "F32", (size,)):
                raise WeightsError(
                    f"tensor {name!r} is {tensor.dtype}{list(tensor.shape)}, the toy model has only "
                    f"{TOY_TENSOR!r} of F32[{size}]"
                )

    def load(self) -> EngineLoad:
        return EngineLoad(
            slots=self._slots,
            running=len(self._running),
            queued=len(self._waiting),
            tokens_per_s=self._rate.per_second(),
            version=self._version,
        )
