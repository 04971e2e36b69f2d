"""Any causal language model of transformers as a `BatchModel`: right, not fast.

Each sequence has its own cache object and its own forward pass, so nothing depends on how an architecture handles
padding, positions or windows. A step costs as many passes as there are sequences.
KV memory isn't budgeted here: it grows with what runs, at most slots × context_length tokens.
"""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

from astraflow.engines.architecture import differs
from astraflow.engines.sequences import Running, Segment
from astraflow.engines.weights import WeightSlots
from astraflow.errors import ConfigError
from astraflow.models.layout import checkpoint_layout, tied_names
from astraflow.models.loading import check_runs
from astraflow.weights.codec.changes import Change
from astraflow.weights.codec.tensors import HostTensor


class TransformersModel:
    """A model built from its config alone.

    Args: config: transformers' config object.
    Raises: ConfigError if it can't be used, or remembers a sequence as a state instead of keys and values, to which
        prompts can't be added piece by piece; WeightsError for tensors that don't fit.
    """

    def __init__(
        self, config: Any, tensors: Mapping[str, HostTensor], *, context_length: int, dtype: torch.dtype
    ) -> None:
        model = _built(config, dtype)
        layout = checkpoint_layout(model)
        tied = tied_names(model)
        if any(differs(tensors, target, source) for target, source in tied.items()):
            _untie(config)
            model = _built(config, dtype)
            layout, tied = checkpoint_layout(model), {}
        self._model = model
        parameters = inspect.signature(self._model.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"  # renamed in transformers 5.24
        self._context_length = context_length
        state: dict[str, Tensor] = model.state_dict()
        buffers = {name for name, _ in model.named_buffers()}
        self._slots = WeightSlots(
            {name: piece.of(state) for name, piece in layout.items()},
            optional={name for name, piece in layout.items() if piece.name in buffers},
            ignored={
                one: layout[other].shape
                for pair in tied.items()
                for one, other in (pair, pair[::-1])
                if one not in layout and other in layout
            },
        )
        self._slots.check(tensors, complete=True)
        self.prepare(tensors)()
        check_runs(model)
        self._caches: dict[Running, DynamicCache] = {}

    @torch.inference_mode()
    def whole(self, tokens: Sequence[int]) -> Tensor:
        """float[T, V]: the logits of a whole sequence, in one pass and without any cache."""
        logits: Tensor = self._model(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits[0]
        return logits

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


def _built(config: Any, dtype: torch.dtype) -> Any:
    try:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False).eval()
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as exc:
        raise ConfigError(f"transformers can't build a {config.model_type} model: {exc}") from exc
    if model._is_stateful:
        raise ConfigError(
            f"a {config.model_type} model remembers a sequence in recurrent states, which the embedded engine doesn't "
            'serve; use engine.kind = "sglang"'
        )
    return model


def _untie(config: Any) -> None:
    config.tie_word_embeddings = config.get_text_config().tie_word_embeddings = False
