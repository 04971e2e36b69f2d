"""One model, plain torch, on the CPU or a GPU: the learner of one process, or one rank of those that compute together.

Not here: batches' order, versions and publishing (the trainer actor), how ranks are started and told (`ranks/`).
Blocking; one thread calls it, and on every rank the same calls are made in the same order.
Invariant: a step that reports `trained=False` leaves weights, optimizer and step count bit for bit as they were.
Its metrics are those of `step_metrics.py`.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from astraflow import clock
from astraflow.compute import CPU, compute_device, compute_dtype, placed
from astraflow.config import TrainerSection
from astraflow.errors import WeightsError
from astraflow.learners.base import StepReport
from astraflow.learners.batch import Batch, read_batch
from astraflow.learners.checkpoint import read_state, write_state
from astraflow.learners.critic import Critic
from astraflow.learners.gradients import accumulate_gradients
from astraflow.learners.logprobs import Temperature, batch_logprobs
from astraflow.learners.losses.compose import Loss, Prepared
from astraflow.learners.losses.tokens import LossBatch
from astraflow.learners.master import MasterWeights
from astraflow.learners.model import LoadedModel, load_frozen, load_model
from astraflow.learners.packing import Costs, MicroBatch, PackItem, plan_micro_batches
from astraflow.learners.ranks.group import Ranks
from astraflow.learners.ranks.owners import Owners
from astraflow.learners.schedule import scheduled_rate
from astraflow.learners.step_metrics import Update, step_metrics, value_metrics
from astraflow.learners.team import Alone, Team
from astraflow.messages import Probe, Sample, array_of
from astraflow.messages.metric_names import (
    TRAIN_ENTROPY,
    TRAIN_LOSS,
    TRAIN_LR,
    TRAIN_PREPARE_S,
    TRAIN_SKIPPED_SAMPLES,
    TRAIN_SKIPPED_UPDATES,
    TRAIN_TOKENS,
)
from astraflow.models.export import described, export_tensors
from astraflow.models.facts import read_facts
from astraflow.models.folder import read_files, write_model
from astraflow.models.loading import Sharding
from astraflow.models.probe import probe_row, scored
from astraflow.weights.codec.tensors import HostTensor

_logger = logging.getLogger(__name__)

CRITIC = "critic/"  # before the names of its tensors in a saved state


class TorchLearner:
    """A `Learner` for causal language models that transformers can load.

    Args:
        model_folder: what `save_pretrained` wrote, weights and tokenizer. Raises ConfigError if it can't be used.
        seed: of the master's dither; nothing else here is random.
        threads: cores for torch; set for the whole process.
        temperature: of tokens whose sample doesn't say at which the engine sampled them; 0 (greedy) reports logprobs
            at 1.
        share_prefixes: compute the prompt of a group once where that is cheaper and the model allows it.
        reference_folder: the model that a KL is taken to, read if loss.kl > 0; None: `model_folder`.
        team: the ranks that compute it together, and `sharding` how they cut the model; None: this process alone.
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
        reference_folder: Path | None = None,
        team: Team | None = None,
        sharding: Sharding | None = None,
    ) -> None:
        torch.set_num_threads(threads)
        self._section = section
        self._temperature = temperature
        self._loss = Loss(section.loss, section.critic)
        self._team: Team = team or Alone()
        self._device = compute_device(section.device)
        self._dtype = dtype = compute_dtype(section.dtype, self._device)
        self._model = load_model(model_folder, sharding, activation_checkpointing=section.activation_checkpointing)
        self._model.module.to(self._device)
        self._share_prefixes = share_prefixes and self._model.shares_prefixes
        self._costs = Costs(attention=self._model.attention_cost)
        self._steps = 0
        self._files = described(read_files(model_folder), self._model.module, dtype)
        self._master = MasterWeights(
            self._model.module, section, dtype=dtype, dither_seed=seed if section.dither else None, team=self._team
        )
        self._owners: Owners | None = None
        if isinstance(self._team, Ranks):
            masters = self._master.masters
            self._owners = Owners(masters, dict.fromkeys(masters, 0), self._team)
        self._critic: Critic | None = None
        if section.critic is not None:
            self._critic = Critic(self._model.head_VD.shape[1], section.critic, section, self._team, self._device)
        # In the learner's own dtype: before the first step the KL is exactly 0.
        reference = reference_folder or model_folder
        self._reference = load_frozen(reference, dtype, sharding) if self._loss.needs_reference else None
        if self._reference is not None:
            self._reference.module.to(self._device)
        _logger.info(
            "learner ready",
            extra={
                "model": str(model_folder),
                "device": str(self._device),
                "dtype": str(dtype),
                "dithered_tensors": self._master.dithered,
                "tensors": len(self._master.masters),
                "shares_prefixes": self._share_prefixes,
            },
        )

    def step(self, samples: Sequence[Sample]) -> StepReport:
        """One optimizer step: `updates_per_batch` updates. Raises MessageError for samples that don't fit the model.

        A batch whose samples all have advantage 0 has a gradient of 0: AdamW still moves along its momentum, exactly
        as if the zeros had been computed. An update that is not finite is left out, and those after it.
        """
        batch = read_batch(
            samples,
            vocabulary=self._model.vocabulary,
            only_advantages=self._loss.only_advantages,
            needs_behaviour=self._loss.needs_behaviour,
            temperature=self._temperature,
        )
        if batch.sampled_tokens == 0:
            return StepReport(trained=False, skip_reason="no_tokens")
        if not batch.finite:
            return StepReport(trained=False, skip_reason="nan_loss")
        started = clock.monotonic()
        prepared = self._prepare(batch)
        prepare_s = clock.monotonic() - started
        learning_rate = self.learning_rate
        shares = batch.shares(self._section.updates_per_batch)
        updates: list[Update] = []
        for chosen_S in shares:
            updates.append(self._update(batch, prepared, chosen_S, learning_rate=learning_rate))
            if updates[-1].skip_reason:
                break
        done = [update for update in updates if not update.skip_reason]
        if not done:
            return StepReport(trained=False, skip_reason=updates[0].skip_reason, metrics={TRAIN_LOSS: updates[0].loss})
        self._steps += 1
        if self._critic is not None:
            self._critic.steps += 1
        metrics = {
            **step_metrics(done),
            **value_metrics(prepared, done),
            TRAIN_LR: learning_rate,
            TRAIN_TOKENS: float(batch.sampled_tokens),
            TRAIN_SKIPPED_SAMPLES: float(batch.skipped),
            TRAIN_SKIPPED_UPDATES: float(len(shares) - len(done)),
        }
        metrics[TRAIN_PREPARE_S] += prepare_s
        if batch.reported:
            metrics[TRAIN_ENTROPY] = -float(batch.behaviour_M.mean())
        return StepReport(trained=True, metrics=metrics)

    def _prepare(self, batch: Batch) -> Prepared:
        """The whole batch before the first update; what the loss needs of it is computed here."""
        behaviour_M, proximal_M, reference_M = placed(batch.behaviour_M, self._device), None, None
        temperature = temperature_of(batch, self._device)
        needs_proximal = self._loss.needs_proximal or not batch.reported
        values_M = None
        looks = needs_proximal or self._reference is not None or self._critic is not None
        plan = self._plan(batch.items) if looks else []
        if needs_proximal:
            proximal_M = self._logprobs(self._model, plan, behaviour_M, temperature)
        if not batch.reported:
            assert proximal_M is not None
            behaviour_M = proximal_M  # nothing but metrics looks at it
        if self._reference is not None:
            reference_M = self._logprobs(self._reference, plan, behaviour_M, temperature)
        if self._critic is not None:
            values_M = self._critic.batch_values(self._model, plan, batch.sampled_tokens, team=self._team)
        return self._loss.prepare(
            LossBatch(
                behaviour_M=behaviour_M,
                advantages_M=placed(batch.advantages_M, self._device),
                sequence_M=placed(batch.sequence_M, self._device),
                task_S=placed(batch.tasks_S, self._device),
                proximal_M=proximal_M,
                reference_M=reference_M,
                values_M=values_M,
            )
        )

    def _update(self, batch: Batch, prepared: Prepared, chosen_S: NDArray[np.bool_], *, learning_rate: float) -> Update:
        started = clock.monotonic()
        plan = self._plan(batch.items_of(chosen_S))
        current_M = None
        if self._loss.needs_current:
            current_M = self._logprobs(self._model, plan, prepared.anchor_M, temperature_of(batch, self._device))
        weights = self._loss.weigh(prepared, chosen_S=placed(chosen_S, self._device), current_M=current_M)
        prepare_s = clock.monotonic() - started
        critic = self._critic
        found = accumulate_gradients(
            self._model,
            plan,
            self._loss,
            prepared,
            weights,
            temperature=temperature_of(batch, self._device),
            critic=critic,
            team=self._team,
        )
        if not math.isfinite(found.loss + found.value_loss):
            return self._skip("nan_loss", found.loss + found.value_loss)
        norm, value_norm = self._master.gradient_norm(), critic.weights.gradient_norm() if critic else 0.0
        if not math.isfinite(norm + value_norm):
            return self._skip("nan_gradient", found.loss)
        started = clock.monotonic()
        if critic is None or not critic.warming_up:
            self._master.apply_gradients(norm, learning_rate=learning_rate)
        if critic is not None:
            critic.apply_gradients(value_norm)
        return Update(
            loss=found.loss,
            grad_norm=norm,
            sums=found.sums,
            micro_batches=len(plan),
            mismatch_at=found.mismatch_at,
            value_loss=found.value_loss,
            value_grad_norm=value_norm,
            computed_tokens=sum(micro_batch.tokens_BL.size for micro_batch in plan),
            prepare_s=prepare_s,
            forward_s=found.forward_s,
            backward_s=found.backward_s,
            optimizer_s=clock.monotonic() - started,
        )

    def _plan(self, items: Sequence[PackItem]) -> list[MicroBatch]:
        return plan_micro_batches(
            items,
            budget_tokens=self._section.micro_batch_tokens,
            costs=self._costs,
            share_prefixes=self._share_prefixes,
        )

    def _logprobs(
        self, model: LoadedModel, plan: Sequence[MicroBatch], elsewhere_M: Tensor, temperature: Temperature
    ) -> Tensor:
        return batch_logprobs(model, plan, elsewhere_M, temperature=temperature, team=self._team)

    def _skip(self, reason: str, loss: float) -> Update:
        self._master.drop_gradients()
        if self._critic is not None:
            self._critic.weights.drop_gradients()
        return Update(skip_reason=reason, loss=loss)

    @property
    def learning_rate(self) -> float:
        """Of the next step; 0 while the critic warms up, also one that is younger than the policy."""
        if self._critic is not None and self._critic.warming_up:
            return 0.0
        return scheduled_rate(self._section, self._steps)

    def export(self) -> Mapping[str, HostTensor]:
        """The weights in the compute dtype, which is the rollout dtype; stable copies under Hugging Face names.

        Of a sharded model the lead has them all, and the other ranks none.
        """
        if self._owners is None:
            return export_tensors(self._model.module.state_dict(), self._model.layout)
        state = dict(self._model.module.named_buffers()) if self._team.rank == 0 else {}
        state |= dict(self._owners.gathered(self._dtype))
        layout = {name: piece for name, piece in self._model.layout.items() if piece.name in state}
        return export_tensors(state, layout)

    def probe(self) -> Probe | None:
        facts = read_facts(self._files)
        row_T = probe_row(min(facts.vocab_size, self._model.vocabulary), facts.context_length)
        if not row_T.size:
            return None
        count = scored(row_T)
        sample = Sample(
            id="probe",
            task_id="probe",
            group_id="probe",
            tokens=array_of(row_T, "i4"),
            loss_mask=array_of([0] * (row_T.size - count) + [1] * count, "u1"),
            logprobs=array_of(np.zeros(row_T.size), "f4"),
            versions=(),
            advantage=1.0,
            reward=0.0,
        )
        batch = read_batch([sample], vocabulary=self._model.vocabulary)
        elsewhere_M = torch.zeros(batch.sampled_tokens, device=self._device)
        logprobs_M = self._logprobs(self._model, self._plan(batch.items), elsewhere_M, 1.0)
        return Probe(
            tokens=tuple(row_T.tolist()),
            logprobs=tuple(logprobs_M.tolist()),
            dtype=str(self._dtype).removeprefix("torch."),
        )

    def model_files(self) -> Mapping[str, bytes]:
        """config.json, tokenizer files and chat template, as they were in the model folder (but for the dtype)."""
        return self._files

    def save(self, folder: Path) -> None:
        """Write masters and optimizer, and the critic with its own, fsynced, into an existing folder."""
        tensors = self._master.tensors()
        if self._critic is not None:
            tensors |= {CRITIC + name: tensor for name, tensor in self._critic.tensors().items()}
        write_state(folder, tensors, steps=self._steps, team=self._team)

    def restore(self, folder: Path) -> None:
        """Read what `save` wrote; nothing changes if it raises WeightsError.

        A critic that the state knows nothing of starts afresh, its warm-up too; one that the run file no longer has is
        left behind.
        """
        tensors, steps = read_state(folder, like=self._master.like, team=self._team)
        critic = {name.removeprefix(CRITIC): t for name, t in tensors.items() if name.startswith(CRITIC)}
        wrong = self._master.misfits(tensors)
        if self._critic is not None and critic:
            wrong += [CRITIC + name for name in self._critic.misfits(critic)]
        if wrong:
            raise WeightsError(
                f"learner state in {folder} is of another model: {len(wrong)} tensors differ, {wrong[0]}"
            )
        self._master.replace(tensors)
        self._steps = steps
        if self._critic is not None and critic:
            self._critic.replace(critic)

    def close(self) -> None:
        """It has nothing but memory; the ranks' lead ends them."""

    def export_model(self, folder: Path) -> None:
        """Write a folder that transformers loads, tokenizer and chat template included."""
        tensors = self.export()
        if self._team.rank == 0:
            write_model(folder, self._files, tensors)


def temperature_of(batch: Batch, device: torch.device = CPU) -> Temperature:
    """Of its tokens: one for all, which is quicker, or each its own."""
    temperatures_M = batch.temperatures_M
    if (temperatures_M == temperatures_M[:1]).all():
        return float(temperatures_M[0])
    return placed(temperatures_M, device).float()
