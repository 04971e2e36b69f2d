"""The seam between a trainer actor and whatever updates weights. Blocking; the actor calls it from one thread."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from astraflow.messages import Probe, Sample
from astraflow.weights.codec.tensors import HostTensor


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """What one optimizer step did."""

    trained: bool  # False: skipped, see `skip_reason`
    skip_reason: str = ""  # nan_loss | nan_gradient | no_tokens | ""
    metrics: Mapping[str, float] = field(default_factory=dict)  # names from messages/metric_names.py


class Learner(Protocol):
    """Owns master weights and optimizer of one policy."""

    def step(self, samples: Sequence[Sample]) -> StepReport:
        """One optimizer step. A NaN or infinite loss or gradient leaves weights and optimizer untouched."""
        ...

    def export(self) -> Mapping[str, HostTensor]:
        """The weights in the rollout dtype under Hugging Face names; a tied tensor appears once.

        The returned bytes don't change when the learner steps on.
        """
        ...

    def probe(self) -> Probe | None:
        """What the weights make of the fixed row of `models/probe.py`; None if there is nothing to compare."""
        ...

    def model_files(self) -> Mapping[str, bytes]:
        """config.json, tokenizer files and chat template: what a replica needs besides tensors."""
        ...

    def save(self, folder: Path) -> None:
        """Write everything a bit-equal resume needs (master weights, optimizer, rng) into an existing folder."""
        ...

    def restore(self, folder: Path) -> None:
        """Read what `save` wrote. Raises WeightsError if it is damaged or of another model."""
        ...

    def export_model(self, folder: Path) -> None:
        """Write a folder that `transformers.AutoModelForCausalLM.from_pretrained` loads."""
        ...

    def close(self) -> None:
        """End what it has besides memory: other processes. From any thread; nothing is called afterwards."""
        ...
