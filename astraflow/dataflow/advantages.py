"""A group's rewards become advantages: GRPO, Dr.GRPO, RLOO or the rewards themselves, on one group and role at a time.

Not here: filtering of groups without signal (dataflow), normalisation over a batch and the use in a loss (`losses/`).
Invariant: but for `reward`, advantages of a group sum to 0, and are exactly 0 when all its rewards are equal or it has
one member.
A NaN or infinite reward gives NaN advantages for its whole group; the learner refuses those.
Axes: G group member. Groups may have any size ≥ 1, and sizes may differ within a batch.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from astraflow.errors import EmptyGroupError

Rewards = NDArray[np.float64]
Scores = Mapping[str, float]  # a member's, by role
AdvantageFunction = Callable[[Rewards], Rewards]

# A group whose rewards differ by rounding noise only isn't blown up to unit size.
_STD_FLOOR = 1e-4


def grpo(rewards_G: Rewards) -> Rewards:
    """Normalised group advantages, A_i = (r_i − mean(r)) / (std(r) + 1e-4).

    std divides by G − 1, as the common trainers do (TRL and verl call `torch.std`), so published step sizes carry
    over: rewards (0, 1) give ±0.707, the population's std would give ±1.

    Args: rewards_G: float[G]. Returns: float[G], sums to 0. Raises: EmptyGroupError if G == 0.
    Source: arXiv:2402.03300 §4.1.2.
    """
    centred_G = dr_grpo(rewards_G)
    if rewards_G.size == 1 or not centred_G.any():
        return centred_G
    normalised_G: Rewards = centred_G / (np.std(rewards_G, ddof=1) + _STD_FLOOR)
    return normalised_G


def dr_grpo(rewards_G: Rewards) -> Rewards:
    """Group-centred advantages, A_i = r_i − mean(r): GRPO without its bias towards groups of low variance.

    Args: rewards_G: float[G]. Returns: float[G], sums to 0. Raises: EmptyGroupError if G == 0.
    Source: arXiv:2503.20783 §3.2.
    """
    if rewards_G.size == 0:
        raise EmptyGroupError("a group of 0 members has no advantages; drop it before this stage")
    if rewards_G.size == 1 or np.all(rewards_G == rewards_G[0]):
        # 0 also where the mean of equal numbers is not that number: mean(0.1, 0.1, 0.1) > 0.1. NaN and inf show.
        zeros_G: Rewards = np.zeros(rewards_G.shape) + (rewards_G[0] - rewards_G[0])
        return zeros_G
    centred_G: Rewards = rewards_G - rewards_G.mean()
    return centred_G


def rloo(rewards_G: Rewards) -> Rewards:
    """Leave-one-out advantages, A_i = r_i − mean of the other members = G / (G − 1) · (r_i − mean(r)).

    A single member has no others to compare with: its advantage is 0.

    Args: rewards_G: float[G]. Returns: float[G], sums to 0. Raises: EmptyGroupError if G == 0.
    Source: arXiv:2402.14740 §2.2.
    """
    centred_G = dr_grpo(rewards_G)
    scaled_G: Rewards = centred_G * (rewards_G.size / max(1, rewards_G.size - 1))
    return scaled_G


def reward(rewards_G: Rewards) -> Rewards:
    """The rewards as they are, A_i = r_i: REINFORCE, for a loss that normalises over the batch, and for groups of 1.

    Args: rewards_G: float[G]. Returns: float[G]. Raises: EmptyGroupError if G == 0. Source: arXiv:2501.03262.
    """
    if rewards_G.size == 0:
        raise EmptyGroupError("a group of 0 members has no advantages; drop it before this stage")
    return rewards_G


# gae: the learner's critic makes advantages of them, token by token (gae.py).
ADVANTAGES: Mapping[str, AdvantageFunction] = {
    "grpo": grpo,
    "dr-grpo": dr_grpo,
    "rloo": rloo,
    "reward": reward,
    "gae": reward,
}


def by_role(scores_G: Sequence[Scores], advantages: AdvantageFunction) -> list[dict[str, float]]:
    """Per member, the advantage of each of its roles among the members that have the role.

    In self-play one policy is both sides, and a mean over sides would be 0 for ever. A policy in one role gets what the
    advantage function gives for the group.
    """
    advantages_G: list[dict[str, float]] = [{} for _ in scores_G]
    for role in sorted({role for scores in scores_G for role in scores}):
        members = [member for member, scores in enumerate(scores_G) if role in scores]
        values = advantages(np.array([scores_G[member][role] for member in members], dtype=np.float64))
        for member, value in zip(members, values.tolist(), strict=True):
            advantages_G[member][role] = value
    return advantages_G
