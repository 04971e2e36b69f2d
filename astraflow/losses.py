"""For losses of your own: `[policies.<name>.trainer.loss] objective = "my_module:my_function"`.

The function takes a micro-batch's `LossTokens`, and `loss.args` as keyword arguments, and returns float[N], the loss of
each token by itself: how much a token counts in the whole batch is done for it. What it must not do: look at other
micro-batches, or change what it is given.
"""

from astraflow.learners.losses.tokens import LossTokens

__all__ = ["LossTokens"]
