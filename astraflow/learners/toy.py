"""A learner that only counts: for chaos tests and the pipeline benchmark. No torch, no model.

Its one tensor counts trained samples: each adds 1 to weight crc32(id) mod 64. So the weights of a run tell which
samples were trained how often, in whatever order the batches came, and the sum of the weights is their number.
Invariant: whole numbers in fp32, exact below 2²⁴ samples per weight; save and restore are bit-equal.
"""

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from astraflow import clock
from astraflow.config import TrainerSection
from astraflow.errors import ConfigError, MessageError, WeightsError
from astraflow.learners.base import StepReport
from astraflow.learners.durable import write_durably
from astraflow.messages import Array, Sample, array_of
from astraflow.messages.metric_names import TRAIN_LOSS, TRAIN_LR, TRAIN_TOKENS
from astraflow.models.folder import read_model, write_model
from astraflow.models.toy import TOY_TENSOR, TOY_VOCAB, toy_model
from astraflow.weights.codec.tensors import HostTensor

STATE_FILE = "toy.json"


class _ToyState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of it."""

    steps: int
    weights: Array  # f4[64]


class ToyLearner:
    """A `Learner` whose steps take `toy_step_s` seconds, blocking, and change weights by what they were given.

    It starts from the folder's weights where there are any (a resume from the bus), else from zeros.
    """

    def __init__(self, model_folder: Path, section: TrainerSection) -> None:
        self._section = section
        has_weights = any(model_folder.glob("*.safetensors"))
        self._files, tensors = read_model(model_folder) if has_weights else toy_model()[::-1]
        if TOY_TENSOR not in tensors:
            raise ConfigError(f"{model_folder} has no {TOY_TENSOR}; the toy learner trains the toy model only")
        self._weights = np.frombuffer(tensors[TOY_TENSOR].data, "<f4").copy()
        self._steps = 0

    def step(self, samples: Sequence[Sample]) -> StepReport:
        """Count the samples. Skips what the torch learner skips: no sampled tokens, NaN or infinite numbers."""
        clock.sleep(self._section.toy_step_s)
        tokens = sum(int(sample.loss_mask.numpy().sum()) for sample in samples)
        if tokens == 0:
            return StepReport(trained=False, skip_reason="no_tokens")
        if not all(np.isfinite(s.advantage) and np.isfinite(s.logprobs.numpy()).all() for s in samples):
            return StepReport(trained=False, skip_reason="nan_loss")
        for sample in samples:
            self._weights[zlib.crc32(sample.id.encode()) % TOY_VOCAB] += 1.0
        self._steps += 1
        metrics = {TRAIN_LOSS: 0.0, TRAIN_LR: self._section.learning_rate, TRAIN_TOKENS: float(tokens)}
        return StepReport(trained=True, metrics=metrics)

    def export(self) -> Mapping[str, HostTensor]:
        return {TOY_TENSOR: HostTensor("F32", self._weights.shape, memoryview(self._weights.tobytes()))}

    def probe(self) -> None:
        """A toy's logprobs come from no model."""

    def model_files(self) -> Mapping[str, bytes]:
        return self._files

    def save(self, folder: Path) -> None:
        state = _ToyState(steps=self._steps, weights=array_of(self._weights, "f4"))
        write_durably(folder / STATE_FILE, msgspec.json.encode(state))

    def restore(self, folder: Path) -> None:
        """Raises WeightsError if the file is missing or damaged."""
        try:
            state = msgspec.json.decode((folder / STATE_FILE).read_bytes(), type=_ToyState)
            weights = state.weights.numpy()
        except (OSError, msgspec.MsgspecError, MessageError) as exc:
            raise WeightsError(f"toy learner state in {folder} can't be read: {exc}") from exc
        if weights.shape != self._weights.shape:
            raise WeightsError(f"toy learner state in {folder} has {weights.shape} weights, expected {TOY_VOCAB}")
        self._weights, self._steps = weights.copy(), state.steps

    def close(self) -> None:
        """It has nothing but memory."""

    def export_model(self, folder: Path) -> None:
        """config.json and safetensors; no transformers model is behind a toy."""
        write_model(folder, self._files, self.export())
