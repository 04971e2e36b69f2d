"""Any causal language model of transformers as a `BatchModel`: right, not fast.

Each sequence has its own cache object and its own forward pass, so nothing depends on how an architecture handles
padding, positions or windows. A step costs as many passes as there are sequences.
KV memory isn't budgeted here: it grows with what runs, at most slots × context_length tokens.
"""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from astraflow.engines.architecture import ModelFacts
from astraflow.engines.sequences import Running, Segment
from astraflow.engines.weights import WeightSlots
from astraflow.errors import EngineError
from astraflow.weights.codec.changes import Change
from astraflow.weights.codec.tensors import HostTensor


class TransformersModel:
    """A model built from its config alone. Raises EngineError for a type that transformers doesn't know."""

    def __init__(self, facts: ModelFacts, tensors: Mapping[str, HostTensor], *, dtype: torch.dtype) -> None:
        try:
            settings = {key: value for key, value in facts.config.items() if key != "model_type"}
            config = AutoConfig.for_model(facts.model_type, **settings)
            self._model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
        except (ValueError, KeyError) as exc:
            raise EngineError(f"transformers can't build a {facts.model_type!r} model: {exc}") from exc
        parameters = inspect.signature(self._model.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"  # renamed in transformers 5.24
        self._context_length = facts.context_length
        state: dict[str, Tensor] = self._model.state_dict()
        self._slots = WeightSlots(state, optional=_repeated(state) | _buffers(self._model))
        self._slots.check(tensors, complete=True)
        self.prepare(tensors)()
        self._caches: dict[Running, DynamicCache] = {}

    @property
    def longest(self) -> int:
        return self._context_length

    def admit(self, sequence: Running) -> bool:
        self._caches[sequence] = DynamicCache(config=self._model.config)
        sequence.computed = 0
        return True

    def fork(self, source: Running, target: Running, count: int) -> None:
        if count == source.computed:  # not every architecture's cache can be cut
            self._caches[target] = copy.deepcopy(self._caches[source])
            target.computed = count

    def restart(self, sequence: Running) -> None:
        self.admit(sequence)

    @torch.inference_mode()
    def forward(self, segments: Sequence[Segment]) -> Tensor:
        logits: list[Tensor] = []
        for item in segments:
            sequence, start = item.sequence, item.sequence.computed
            tokens = torch.from_numpy(sequence.tokens[start : start + item.count]).long().unsqueeze(0)
            positions = torch.arange(start, start + item.count).unsqueeze(0)
            out = self._model(
                input_ids=tokens,
                position_ids=positions,
                use_cache=True,
                logits_to_keep=1,
                **{self._cache_argument: self._caches[sequence]},
            )
            sequence.computed += item.count
            if sequence.computed == sequence.known:
                logits.append(out.logits[0, -1])
        return torch.stack(logits) if logits else torch.empty(0, 0)

    def release(self, sequence: Running) -> None:
        del self._caches[sequence]

    def check(self, changes: Mapping[str, Change]) -> None:
        self._slots.check(changes)

    def prepare(self, changes: Mapping[str, Change]) -> Callable[[], None]:
        writes = self._slots.prepare(changes)

        def put() -> None:
            for write in writes:
                write.run()

        return put


def _repeated(state: Mapping[str, Tensor]) -> set[str]:
    """Names that share memory with an earlier one: a tied tensor appears once in a checkpoint, under either name."""
    by_address: dict[int, list[str]] = {}
    for name, tensor in state.items():
        by_address.setdefault(tensor.data_ptr(), []).append(name)
    return {name for names in by_address.values() for name in names[1:]}


def _buffers(model: torch.nn.Module) -> set[str]:
    return {name for name, _ in model.named_buffers()}
