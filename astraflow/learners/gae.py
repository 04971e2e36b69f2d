"""Generalised advantage estimation over the tokens that a policy sampled, of whole trajectories.

Not here: who estimates the values, and the losses. Context tokens aren't here either: between two turns the next
sampled token follows the last one, and what the environment said meanwhile is in the state before it.
Invariant: nothing flows from one trajectory into another. The state behind the last token is worth 0: a trajectory is
scored as it ended, also where its token budget ended it.
Axes: M sampled token of the batch (trajectories in order, tokens in order), S trajectory, L sampled token of one.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def gae(
    rewards_M: Floats, values_M: Floats, sequence_M: NDArray[np.int64], *, gamma: float, gae_lambda: float
) -> tuple[Floats, Floats]:
    """Advantages and returns, both float64[M].

    δ_t = r_t + γ·V_{t+1} − V_t,   A_t = δ_t + γλ·A_{t+1},   R_t = A_t + V_t

    λ = 1 gives A_t = (discounted rewards from t on) − V_t, so R_t is what really came; λ = 0 gives A_t = δ_t.

    Args:
        rewards_M: what each token earned; a trajectory's own reward stands at its last token.
        values_M: V_t, estimated before token t is sampled.
        sequence_M: which trajectory; ascending.
    Source: arXiv:1506.02438 eq. 16.
    """
    starts_M = np.searchsorted(sequence_M, sequence_M, side="left")
    place_M = np.arange(len(sequence_M)) - starts_M
    _, row_M = np.unique(sequence_M, return_inverse=True)
    shape = (int(row_M.max(initial=-1)) + 1, int(place_M.max(initial=-1)) + 1)
    rewards_SL, values_SL = np.zeros(shape), np.zeros((shape[0], shape[1] + 1))
    rewards_SL[row_M, place_M] = rewards_M
    values_SL[row_M, place_M] = values_M
    advantages_SL, next_S = np.zeros(shape), np.zeros(shape[0])
    for at in reversed(range(shape[1])):  # behind a trajectory's end all is 0, and stays 0
        surprise_S = rewards_SL[:, at] + gamma * values_SL[:, at + 1] - values_SL[:, at]
        advantages_SL[:, at] = next_S = surprise_S + gamma * gae_lambda * next_S
    advantages_M: Floats = advantages_SL[row_M, place_M]
    return advantages_M, advantages_M + values_M


def at_last(scores_M: Floats, sequence_M: NDArray[np.int64]) -> Floats:
    """A trajectory's reward, known at all of its tokens, where it was earned: at its last one, 0 elsewhere."""
    last_M = np.append(sequence_M[1:] != sequence_M[:-1], True)[: len(sequence_M)]
    return np.where(last_M, scores_M, 0.0)
