"""A loss of your own: `[policies.solver.trainer.loss] objective = "my_loss:bounded_ratio"`, run where this file is."""

from torch import Tensor

from astraflow.losses import LossTokens


def bounded_ratio(tokens: LossTokens, *, bound: float = 2.0) -> Tensor:
    """Importance-weighted REINFORCE whose weights stop growing at `bound`.

    Returns: float[N], the loss of each token by itself; how much it counts in the whole batch is done for you.
    """
    return -tokens.log_ratio_N.exp().clamp(max=bound) * tokens.advantages_N
