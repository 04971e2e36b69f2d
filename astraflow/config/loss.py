"""What a trainer minimises: [policies.<name>.trainer.loss]."""

from typing import Annotated, Any, Literal

from msgspec import Struct, field

from astraflow.config.kinds import doc

OBJECTIVES = ("clip", "ratio", "logprob", "cispo", "sapo")  # those of learners/losses/objectives.py, by function name


class LossSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[policies.<name>.trainer.loss]: what is minimised: objective, correction, regularisers, aggregation."""

    preset: Annotated[
        Literal[
            "none",
            "grpo",
            "dapo",
            "dual-clip",
            "dr-grpo",
            "rloo",
            "reinforce++",
            "reinforce++-baseline",
            "gspo",
            "cispo",
            "sapo",
            "m2po",
            "decoupled-ppo",
            "ppo",
        ],
        doc("a published method: fills in the keys that the file leaves out, see below; none = they stand as here"),
    ] = "none"
    objective: Annotated[
        str, doc("clip (PPO), ratio, logprob (REINFORCE), cispo, sapo, or module:function of your own")
    ] = "clip"
    args: Annotated[dict[str, Any], doc("keyword arguments of a function of your own")] = field(default_factory=dict)
    ratio: Annotated[
        Literal["token", "sequence"], doc("sequence: the geometric mean over a sample's tokens (GSPO)")
    ] = "token"
    clip_low: Annotated[float, doc("importance ratio is clipped at 1 - clip_low", ge=0, le=1)] = 0.2
    clip_high: Annotated[float, doc("importance ratio is clipped at 1 + clip_high", ge=0)] = 0.28
    dual_clip: Annotated[float, doc("ratio is clipped here too where the advantage is negative; 0 = off", ge=0)] = 0.0
    tau_positive: Annotated[float, doc("sapo: steepness of the gate where the advantage is positive", gt=0)] = 1.0
    tau_negative: Annotated[float, doc("sapo: steepness of the gate elsewhere", gt=0)] = 1.05
    m2_threshold: Annotated[
        float, doc("M2PO: mean squared log ratio of outward tokens, at most; 0 = off, the paper has 0.04", ge=0)
    ] = 0.0
    proximal: Annotated[
        Literal["behaviour", "recompute"],
        doc("ratios are taken against the engine's logprobs, or the learner's at the start of the batch"),
    ] = "behaviour"
    correction: Annotated[
        Literal["none", "truncate", "mask"], doc("weights of proximal over behaviour: bounded, or 0 out of bounds")
    ] = "none"
    correction_level: Annotated[Literal["token", "sequence"], doc("a weight per token, or their product")] = "token"
    correction_cap: Annotated[float, doc("largest weight", gt=0)] = 2.0
    correction_floor: Annotated[float, doc("mask: smallest weight", ge=0)] = 0.0
    kl: Annotated[
        float,
        doc(
            "weight of the KL to the starting model; above 0 the trainer keeps a copy. Of the presets only grpo "
            "sets it, though REINFORCE++ has one too: kl_in = reward",
            ge=0,
        ),
    ] = 0.0
    kl_estimator: Annotated[Literal["k1", "k2", "k3"], doc("k1 is for rewards, k2 and k3 are for losses")] = "k3"
    kl_in: Annotated[
        Literal["loss", "reward"],
        doc("reward: taken off each token's return, after the group's statistics; others add it to the reward before"),
    ] = "loss"
    entropy_bonus: Annotated[float, doc("weight of the mean entropy of a token's distribution", ge=0)] = 0.0
    normalise: Annotated[
        Literal["none", "batch", "task"],
        doc("advantages to mean 0 and deviation 1 over the batch's tokens, or over those of each environment"),
    ] = "none"
    aggregation: Annotated[
        Literal["token-mean", "sequence-mean", "constant"],
        doc("constant: tokens are summed and divided by samples times aggregation_constant"),
    ] = "token-mean"
    aggregation_constant: Annotated[int, doc("tokens; 0 = sampling.max_new_tokens", ge=0)] = 0
