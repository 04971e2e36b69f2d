"""A critic: a linear head on the policy's last hidden states, that says what reward is still to come.

It sees the state that a sampled token is predicted from, so it costs no forward pass in training beside the policy's
own, and one more per batch for its values before. Not here: what it ought to have said (`gae.py`), its loss.
Invariant: the head belongs to no model: it is in checkpoints and never in what is exported.
Axes: N sampled token of a micro-batch, M of a batch, D width.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from astraflow.compute import CPU, placed
from astraflow.config import CriticSection, TrainerSection
from astraflow.learners.logprobs import micro_batch_states
from astraflow.learners.master import MasterWeights
from astraflow.learners.model import LoadedModel
from astraflow.learners.packing import MicroBatch
from astraflow.learners.team import Team


class ValueHead(nn.Module):
    """fp32: a weighted sum of the standardised hidden state over √width, and an offset; all values are 0 at first.

    √width, because AdamW moves all weights by the same amount: a wider model's values would move that much more.
    """

    def __init__(self, width: int, coefficient: float, device: torch.device = CPU) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, device=device))
        self.offset = nn.Parameter(torch.zeros(1, device=device))
        self._coefficient = coefficient

    def forward(self, hidden_ND: Tensor) -> Tensor:
        """float32[N]. What flows back into `hidden_ND` is multiplied with the coefficient."""
        still_ND = hidden_ND.detach().float()
        seen_ND = still_ND + self._coefficient * (hidden_ND.float() - still_ND) if self._coefficient else still_ND
        width = hidden_ND.shape[-1]
        values_N: Tensor = F.layer_norm(seen_ND, (width,)) @ self.weight / width**0.5 + self.offset
        return values_N


class Critic:
    """The head with its optimizer; of the trainer's it shares betas and clipping, but not its learning rate."""

    def __init__(
        self, width: int, section: CriticSection, trainer: TrainerSection, team: Team, device: torch.device = CPU
    ) -> None:
        self.head = ValueHead(width, section.coefficient, device)
        self.weights = MasterWeights(self.head, trainer, dtype=torch.float32, dither_seed=None, team=team)
        self.steps = 0  # batches behind it
        self._section = section

    @property
    def warming_up(self) -> bool:
        """Whether it still learns alone."""
        return self.steps < self._section.warmup_steps

    @torch.no_grad()
    def batch_values(self, model: LoadedModel, plan: Sequence[MicroBatch], count: int, *, team: Team) -> Tensor:
        """float32[M] of `count` tokens; 0 for those outside the plan."""
        values_M = torch.zeros(count, device=model.device)
        for micro_batch in team.own(plan):
            states_ND = model.run(partial(micro_batch_states, model, micro_batch))
            values_M[placed(micro_batch.order_N, model.device)] = self.head(states_ND)
        model.let_go()
        team.add(values_M)
        return values_M

    def apply_gradients(self, norm: float) -> None:
        self.weights.apply_gradients(norm, learning_rate=self._section.learning_rate)

    def tensors(self) -> dict[str, Tensor]:
        """Everything a bit-equal resume needs."""
        return self.weights.tensors() | {"steps": torch.tensor([self.steps], device=CPU)}

    def misfits(self, tensors: Mapping[str, Tensor]) -> list[str]:
        """Names that are missing from what `tensors` gave, or of other shapes."""
        return self.weights.misfits(tensors) + ["steps"] * ("steps" not in tensors)

    def replace(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what `tensors` gave, which fits."""
        self.weights.replace(tensors)
        self.steps = int(tensors["steps"])
