"""fp32 master weights behind the weights that the model computes with, and the optimizer that moves them.

Not here: when a step is taken or skipped (`torch_learner.py`), files (`checkpoint.py`).
Invariant: between steps every weight of the model is its master rounded to the compute dtype, and no gradient is held.
In fp32 the weights *are* their masters.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from astraflow.config import TrainerSection
from astraflow.learners.dither import dithered_master, on_bf16_grid

_MOMENTS = ("exp_avg", "exp_avg_sq", "step")
"""What AdamW keeps of each master, by torch's names."""


class MasterWeights:
    """Takes over a model's parameters: casts them to `dtype` and keeps a float32 master of each.

    bf16 gradients are added to fp32 ones and freed as soon as each of them is complete, so micro-batches don't lose the
    small ones to rounding, and no second set of gradients is ever held.

    Args:
        model: in its checkpoint's dtype.
        dtype: bfloat16 or float32.
        dither_seed: where masters of bf16 values start inside their cell (see `dither.py`); None: at its centre.
    """

    def __init__(
        self, model: nn.Module, section: TrainerSection, *, dtype: torch.dtype, dither_seed: int | None
    ) -> None:
        generator = None if dither_seed is None else torch.Generator().manual_seed(dither_seed)
        self._section = section
        self._weights = dict(model.named_parameters())
        self.masters: dict[str, Tensor] = {}
        self.dithered = 0  # tensors that start inside their bf16 cell
        for name, weight in self._weights.items():
            self.masters[name] = self._take_over(weight, dtype, generator)
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

    def _take_over(self, weight: nn.Parameter, dtype: torch.dtype, generator: torch.Generator | None) -> Tensor:
        source = weight.data
        weight.data = source.to(dtype)
        if dtype == torch.float32:
            return weight
        dither = generator is not None and on_bf16_grid(source)
        master = dithered_master(weight.data, generator) if dither and generator else source.float().clone()
        self.dithered += dither
        weight.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            lambda _: _move_gradient(weight, master)
        )
        return master

    def gradient_norm(self) -> float:
        """Over all masters; NaN or inf if any gradient is."""
        return float(torch.nn.utils.get_total_norm(self._gradients()))

    def apply_gradients(self, norm: float, *, learning_rate: float) -> None:
        """Clip to `max_grad_norm`, take one AdamW step, round into the model's weights, drop the gradients.

        A weight that no gradient reached is moved as if its gradient were 0.
        """
        for master in self.masters.values():
            if master.grad is None:
                master.grad = torch.zeros_like(master)
        scale = min(1.0, self._section.max_grad_norm / (norm + 1e-6))
        if scale < 1.0:
            torch._foreach_mul_(self._gradients(), scale)
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
