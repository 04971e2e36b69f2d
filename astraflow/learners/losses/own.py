"""A loss of the user's own: `objective = "my_module:my_function"`, called with the tokens of each micro-batch.

What it is weighed with is in `compose.py`. Invariant: whatever it raises or returns is trained on, or is one sentence
that names the function and its line.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from astraflow.config import LossSection
from astraflow.errors import ConfigError
from astraflow.learners.losses.tokens import LossTokens
from astraflow.named import USERS_ERRORS, load_function
from astraflow.raised import describe, line_of


class OwnObjective:
    """The function that a section names. Raises ConfigError if there is none that can be called so."""

    def __init__(self, section: LossSection) -> None:
        self._function: Callable[..., Any] = load_function(section.objective, what="loss.objective", args=section.args)
        self._args = section.args
        self._name = f"loss.objective {section.objective}"
        line = line_of(self._function)
        self._name_at = f"{self._name} ({line})" if line else self._name

    def __call__(self, tokens: LossTokens, section: LossSection) -> tuple[Tensor, Tensor]:
        """Raises ConfigError unless the function gives a loss with a gradient for each token."""
        try:
            loss_N = self._function(tokens, **self._args)
        except USERS_ERRORS as exc:
            raise ConfigError(f"{self._name} failed: {describe(exc, of=self._function)}; mend it and go on") from exc
        if why := _why_no_loss(loss_N, tokens.current_N):
            raise ConfigError(f"{self._name_at} {why}")
        return -loss_N, torch.zeros_like(loss_N, dtype=torch.bool)

    def backward(self, part: Tensor) -> None:
        """Add the gradient of a micro-batch's loss. Raises ConfigError if it has none."""
        try:
            part.backward()  # type: ignore[no-untyped-call]
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as exc:
            said = str(exc).partition(". Hint:")[0].replace("\n", " ")
            raise ConfigError(f"{self._name_at} has no gradient: {said}; change no tensor in place") from exc


def _why_no_loss(loss_N: Any, current_N: Tensor) -> str:
    """What is wrong with what a user's function returned; "" if it can be trained on."""
    if inspect.iscoroutine(loss_N):
        loss_N.close()
        return "is async, and nobody awaits it; make it a def"
    expected = f"expected the loss of each of the {len(current_N)} tokens, a tensor of the shape of tokens.current_N"
    if not isinstance(loss_N, Tensor):
        return f"returned {'nothing' if loss_N is None else f'a {type(loss_N).__name__}'}, {expected}"
    if loss_N.shape != current_N.shape:
        return f"returned {tuple(loss_N.shape)}, {expected}"
    if not loss_N.is_floating_point() or loss_N.device != current_N.device:
        return f"returned {loss_N.dtype} on {loss_N.device}, expected {current_N.dtype} on {current_N.device}"
    if current_N.requires_grad and not loss_N.requires_grad:
        return (
            "returned a loss without a gradient, so nothing would be learnt; make it of tokens.current_N or "
            "tokens.log_ratio_N, without detach(), no_grad() or item()"
        )
    return ""
