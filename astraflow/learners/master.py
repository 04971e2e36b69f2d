"""fp32 master weights behind the weights that the model computes with, and the optimizer that moves them.

Not here: when a step is taken or skipped (`torch_learner.py`), files (`checkpoint.py`).
Invariant: between steps every weight of the model is its master rounded to the compute dtype, and no gradient is held.
In fp32, and where the model is sharded, the weights *are* their masters.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from astraflow.config import TrainerSection
from astraflow.learners.dither import dithered_master, on_bf16_grid
from astraflow.learners.norms import gradient_norm, scale
from astraflow.learners.ranks.placement import block_of, flat_indices, local
from astraflow.learners.team import Team

_MOMENTS = ("exp_avg", "exp_avg_sq", "step")
"""What AdamW keeps of each master, by torch's names."""


class MasterWeights:
    """Takes over a model's parameters: casts them to `dtype` and keeps a float32 master of each.

    bf16 gradients are added to fp32 ones and freed as soon as each of them is complete, so micro-batches don't lose the
    small ones to rounding, and no second set of gradients is ever held.

    Args:
        model: in its checkpoint's dtype.
        dtype: bfloat16 or float32. Of a sharded model: that it computes in; its parameters are fp32 pieces.
        dither_seed: where masters of bf16 values start inside their cell (see `dither.py`); None: at its centre.
    """

    def __init__(
        self, model: nn.Module, section: TrainerSection, *, dtype: torch.dtype, dither_seed: int | None, team: Team
    ) -> None:
        self._section = section
        self._team = team
        self._weights = dict(model.named_parameters())
        self.masters: dict[str, Tensor] = {}
        self.dithered = 0  # tensors that start inside their bf16 cell
        for name, weight in self._weights.items():
            self.masters[name] = self._take_over(name, weight, dtype, dither_seed)
        if dtype == torch.bfloat16 and dither_seed is not None:
            self._dither_pieces(dither_seed)
        # Decay shrinks matrices; norms and biases are not meant to tend to 0.
        groups: list[dict[str, Any]] = [
            {"params": [m for m in self.masters.values() if m.ndim > 1]},
            {"params": [m for m in self.masters.values() if m.ndim <= 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(
            groups,
            lr=section.learning_rate,
            betas=(section.beta1, section.beta2),
            weight_decay=section.weight_decay,
            fused=True,
        )

    def _take_over(self, name: str, weight: nn.Parameter, dtype: torch.dtype, dither_seed: int | None) -> Tensor:
        if isinstance(weight, DTensor):
            return weight  # each rank's piece of it is fp32, cast as it is gathered
        source = weight.data
        weight.data = source.to(dtype)
        if dtype == torch.float32:
            return weight
        if dither_seed is not None and on_bf16_grid(source):
            master = dithered_master(weight.data, seed=dither_seed, name=name)
            self.dithered += 1
        else:
            master = source.float().clone()
        weight.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            lambda _: _move_gradient(weight, master)
        )
        return master

    @torch.no_grad()
    def _dither_pieces(self, seed: int) -> None:
        """Of a sharded model: in place, the tensors of which every rank's piece is on the grid."""
        pieces = {name: master for name, master in self.masters.items() if isinstance(master, DTensor)}
        off_grid = torch.tensor([float(not on_bf16_grid(local(master))) for master in pieces.values()])
        self._team.add(off_grid)
        for (name, master), off in zip(pieces.items(), off_grid.tolist(), strict=True):
            if not off:
                elements = partial(flat_indices, tuple(master.shape), block_of(master))
                own = local(master)
                own.copy_(dithered_master(own.to(torch.bfloat16), seed=seed, name=name, elements=elements))
                self.dithered += 1

    def gradient_norm(self) -> float:
        """Over all masters; NaN or inf if any gradient is."""
        return gradient_norm(self._gradients(), self._team)

    def apply_gradients(self, norm: float, *, learning_rate: float) -> None:
        """Clip to `max_grad_norm`, take one AdamW step, round into the model's weights, drop the gradients.

        A weight that no gradient reached is moved as if its gradient were 0.
        """
        for master in self.masters.values():
            if master.grad is None:
                master.grad = torch.zeros_like(master)
        factor = min(1.0, self._section.max_grad_norm / (norm + 1e-6))
        if factor < 1.0:
            scale(self._gradients(), factor)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.drop_gradients()
        self.round_into_weights()

    def drop_gradients(self) -> None:
        for name, master in self.masters.items():
            master.grad = None
            self._weights[name].grad = None

    @torch.no_grad()
    def round_into_weights(self) -> None:
        """Make the model compute with the masters' values."""
        pairs = [(weight, self.masters[name]) for name, weight in self._weights.items()]
        changed = [(weight, master) for weight, master in pairs if weight is not master]
        if changed:
            torch._foreach_copy_([weight for weight, _ in changed], [master for _, master in changed])

    def tensors(self) -> dict[str, Tensor]:
        """Masters and AdamW's moments, which there are none of before the first step. Not copies."""
        tensors = {f"master/{name}": master for name, master in self.masters.items()}
        for name, master in self.masters.items():
            state = self.optimizer.state.get(master, {})
            tensors |= {f"{moment}/{name}": state[moment] for moment in _MOMENTS if moment in state}
        return tensors

    def like(self, name: str, shape: tuple[int, ...]) -> Tensor | None:
        """The master that a tensor of `tensors` belongs to, if it is of its shape: it is cut as that one is."""
        master = self.masters.get(name.partition("/")[2])
        return master if master is not None and tuple(master.shape) == shape else None

    def misfits(self, tensors: Mapping[str, Tensor]) -> list[str]:
        """Names of masters that what `tensors` gave has in other shapes, or that only one of the two has."""
        expected = {name: master.shape for name, master in self.masters.items()}
        found = {name.removeprefix("master/"): t.shape for name, t in tensors.items() if name.startswith("master/")}
        return sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))

    @torch.no_grad()
    def replace(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what `tensors` gave, which has no misfits."""
        self.drop_gradients()
        self.optimizer.state.clear()
        for name, master in self.masters.items():
            master.copy_(tensors[f"master/{name}"])
            if f"{_MOMENTS[0]}/{name}" in tensors:
                self.optimizer.state[master] = {
                    moment: tensors[f"{moment}/{name}"].to(master.device) for moment in _MOMENTS
                }
        self.round_into_weights()

    def _gradients(self) -> list[Tensor]:
        return [master.grad for master in self.masters.values() if master.grad is not None]


def _move_gradient(weight: Tensor, master: Tensor) -> None:
    gradient = weight.grad
    assert gradient is not None
    if master.grad is None:
        master.grad = gradient.float()
    else:
        master.grad.add_(gradient)
    weight.grad = None
