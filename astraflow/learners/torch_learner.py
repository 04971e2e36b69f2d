"""One process, one model, plain torch: the learner for CPUs.

Not here: batches' order, versions and publishing (the trainer actor), sharding. Blocking; one thread calls it.
Invariant: a step that reports `trained=False` leaves weights, optimizer and step count bit for bit as they were.

Metrics of a step (`StepReport.metrics`):
    loss             of the clipped objective, per sampled token
    grad_norm        before clipping
    lr               step size used
    tokens           sampled tokens of the batch: the loss's denominator
    computed_tokens  positions that went through the model, padding included
    micro_batches    forward passes
    skipped_samples  samples without advantage or sampled tokens, not computed
    entropy          −mean of the engine's logprobs over all sampled tokens: what it estimates
    forward_s, backward_s, optimizer_s   seconds
and, of the computed samples, absent if there are none:
    mismatch         mean |engine − learner| logprob; at one step per batch and no staleness it is numerics alone
    mismatch_max     the largest
    mean_ratio       mean importance ratio
    approx_kl        estimate of KL(engine ‖ learner) per token
    clip_fraction    tokens whose gradient the clip removed
"""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from astraflow.algos.losses import TokenSums
from astraflow.algos.packing import Costs, plan_micro_batches
from astraflow.algos.tensors import HostTensor
from astraflow.config import TrainerSection
from astraflow.errors import WeightsError
from astraflow.learners.base import StepReport
from astraflow.learners.batch import read_batch
from astraflow.learners.checkpoint import read_state, write_state
from astraflow.learners.export import export_tensors, with_dtype
from astraflow.learners.gradients import accumulate_gradients
from astraflow.learners.master import MasterWeights
from astraflow.learners.model import load_model
from astraflow.learners.precision import compute_dtype
from astraflow.messages import Sample
from astraflow.models.folder import read_files, write_model

logger = logging.getLogger(__name__)


class TorchLearner:
    """A `Learner` for causal language models that transformers can load.

    Args:
        model_folder: what `save_pretrained` wrote, weights and tokenizer. Raises ConfigError if it can't be used.
        seed: of the master's dither; nothing else here is random.
        threads: cores for torch; set for the whole process.
        temperature: at which the engine samples and reports logprobs; 0 (greedy) reports them at 1.
        share_prefixes: compute the prompt of a group once where that is cheaper and the model allows it.
    """

    def __init__(
        self,
        model_folder: Path,
        section: TrainerSection,
        *,
        seed: int,
        threads: int,
        temperature: float = 1.0,
        share_prefixes: bool = True,
    ) -> None:
        torch.set_num_threads(threads)
        self._section = section
        self._temperature = temperature or 1.0
        self._model = load_model(model_folder)
        self._share_prefixes = share_prefixes and self._model.shares_prefixes
        self._costs = Costs(attention=self._model.attention_cost)
        self._steps = 0
        dtype = compute_dtype(section.dtype)
        self._files = with_dtype(read_files(model_folder), dtype)
        self._master = MasterWeights(
            self._model.module, section, dtype=dtype, dither_seed=seed if section.dither else None
        )
        logger.info(
            "learner ready",
            extra={
                "model": str(model_folder),
                "dtype": str(dtype),
                "dithered_tensors": self._master.dithered,
                "tensors": len(self._master.masters),
                "shares_prefixes": self._share_prefixes,
            },
        )

    def step(self, samples: Sequence[Sample]) -> StepReport:
        """One optimizer step. Raises MessageError for samples that don't fit the model.

        A batch whose samples all have advantage 0 has a gradient of 0: AdamW still moves along its momentum, exactly
        as if the zeros had been computed.
        """
        batch = read_batch(samples, vocabulary=self._model.vocabulary)
        if batch.sampled_tokens == 0:
            return StepReport(trained=False, skip_reason="no_tokens")
        if not batch.finite:
            return StepReport(trained=False, skip_reason="nan_loss")
        plan = plan_micro_batches(
            batch.items,
            budget_tokens=self._section.micro_batch_tokens,
            costs=self._costs,
            share_prefixes=self._share_prefixes,
        )
        result = accumulate_gradients(self._model, plan, batch, self._section, temperature=self._temperature)
        if not math.isfinite(result.loss):
            return self._skip("nan_loss", result.loss)
        norm = self._master.gradient_norm()
        if not math.isfinite(norm):
            return self._skip("nan_gradient", result.loss)
        started = time.perf_counter()
        learning_rate = self.learning_rate
        self._master.apply_gradients(norm, learning_rate=learning_rate)
        self._steps += 1
        metrics = {
            "loss": result.loss,
            "grad_norm": norm,
            "lr": learning_rate,
            "tokens": float(batch.sampled_tokens),
            "computed_tokens": float(sum(micro_batch.tokens_BL.size for micro_batch in plan)),
            "micro_batches": float(len(plan)),
            "skipped_samples": float(batch.skipped),
            "entropy": -float(batch.behaviour_M.mean()),
            "forward_s": result.forward_s,
            "backward_s": result.backward_s,
            "optimizer_s": time.perf_counter() - started,
        }
        return StepReport(trained=True, metrics=metrics | _means(result.sums))

    def _skip(self, reason: str, loss: float) -> StepReport:
        self._master.drop_gradients()
        return StepReport(trained=False, skip_reason=reason, metrics={"loss": loss})

    @property
    def learning_rate(self) -> float:
        """Of the next step: rises linearly to its full value in the last warm-up step."""
        warm_up = min(1.0, (self._steps + 1) / max(1, self._section.warmup_steps))
        return self._section.learning_rate * warm_up

    def export(self) -> Mapping[str, HostTensor]:
        """The weights in the compute dtype, which is the rollout dtype; stable copies under Hugging Face names."""
        return export_tensors(self._model.module)

    def model_files(self) -> Mapping[str, bytes]:
        """config.json, tokenizer files and chat template, as they were in the model folder (but for the dtype)."""
        return self._files

    def save(self, folder: Path) -> None:
        """Write masters and optimizer, fsynced, into an existing folder."""
        tensors = {f"master/{name}": master for name, master in self._master.masters.items()}
        for name, (average, square, step) in self._master.moments().items():
            tensors |= {f"exp_avg/{name}": average, f"exp_avg_sq/{name}": square, f"step/{name}": step}
        write_state(folder, tensors, steps=self._steps)

    def restore(self, folder: Path) -> None:
        """Read what `save` wrote; nothing changes if it raises WeightsError."""
        tensors, steps = read_state(folder)
        expected = {name: master.shape for name, master in self._master.masters.items()}
        found = {name.removeprefix("master/"): t.shape for name, t in tensors.items() if name.startswith("master/")}
        if found != expected:
            wrong = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
            raise WeightsError(
                f"learner state in {folder} is of another model: {len(wrong)} tensors differ, {wrong[0]}"
            )
        moments = {
            name: (tensors[f"exp_avg/{name}"], tensors[f"exp_avg_sq/{name}"], tensors[f"step/{name}"])
            for name in expected
            if f"exp_avg/{name}" in tensors
        }
        self._master.replace({name: tensors[f"master/{name}"] for name in expected}, moments)
        self._steps = steps

    def export_model(self, folder: Path) -> None:
        """Write a folder that transformers loads, tokenizer and chat template included."""
        write_model(folder, self._files, self.export())


def _means(sums: TokenSums) -> dict[str, float]:
    if sums.tokens == 0:
        return {}
    return {
        "mismatch": sums.mismatch / sums.tokens,
        "mismatch_max": sums.mismatch_max,
        "mean_ratio": sums.ratio / sums.tokens,
        "approx_kl": sums.kl / sums.tokens,
        "clip_fraction": sums.clipped / sums.tokens,
    }
