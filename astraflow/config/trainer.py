"""How a policy learns: [policies.<name>.trainer], its critic and its replay. The loss has a module of its own."""

from typing import Annotated, Any, Literal

from msgspec import Struct, field

from astraflow.config.kinds import doc
from astraflow.config.loss import LossSection


class CriticSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[policies.<name>.trainer.critic]: a value head on the policy's own last hidden states; advantages are then GAE's.

    It is trained and checkpointed with the policy and never published. With this table, `advantage` defaults to "gae",
    `filters` to none (a group of equal rewards teaches too) and `loss.normalise` to "batch".
    """

    gamma: Annotated[float, doc("discount per sampled token", ge=0, le=1)] = 1.0
    gae_lambda: Annotated[float, doc("1: what really came, less the value; 0: one token ahead", ge=0, le=1)] = 0.95
    learning_rate: Annotated[float, doc("AdamW step size of the head, in units of reward", gt=0)] = 0.01
    coefficient: Annotated[
        float, doc("weight of the value loss in the gradient of the policy's backbone; 0: only the head learns", ge=0)
    ] = 0.0
    value_clip: Annotated[
        float, doc("a value that moved this far to its return since the batch began stops there; 0 = off", ge=0)
    ] = 0.2
    warmup_steps: Annotated[int, doc("steps of the critic alone, before the policy is trained", ge=0)] = 0


class ReplaySection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[policies.<name>.trainer.replay]: groups that are trained again."""

    kind: Annotated[str, doc("none, latest, uniform, prioritized, or module:Class of your own")] = "none"
    args: Annotated[dict[str, Any], doc("keyword arguments of that")] = field(default_factory=dict)
    share: Annotated[float, doc("part of a batch that is replayed, at most", ge=0, lt=1)] = 0.25
    max_uses: Annotated[int, doc("batches that a group is in, its first included", ge=2)] = 2
    max_staleness: Annotated[int, doc("steps between sampling and training; 0 = the trainer's bound", ge=0)] = 0
    capacity: Annotated[int, doc("groups that are remembered; the oldest go", ge=1)] = 256


class RanksSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[policies.<name>.trainer.ranks]: processes that hold one model in pieces and compute each step together.

    `data` × `replicate` of them, started by the trainer. The weights don't depend on their number, but for rounding.
    """

    data: Annotated[int, doc("ranks that a copy of the model is cut among", ge=1)] = 1
    replicate: Annotated[int, doc("copies of the model, each on `data` ranks", ge=1)] = 1
    tensor: Annotated[int, doc("ranks that share every matrix product; only 1 is built so far", ge=1)] = 1
    context: Annotated[int, doc("ranks that share a row's positions; only 1 is built so far", ge=1)] = 1
    experts: Annotated[int, doc("ranks that share a layer's experts; only 1 is built so far", ge=1)] = 1
    min: Annotated[int, doc("fewest ranks that training goes on with; a rank that doesn't start is left out", ge=1)] = 1
    settle_s: Annotated[float, doc("seconds that ranks have to start", gt=0)] = 60.0
    silent_s: Annotated[float, doc("a rank that says nothing for so long is frozen, and all start anew", gt=0)] = 5.0

    @property
    def size(self) -> int:
        return self.data * self.replicate


class TrainerSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[policies.<name>.trainer]: how it learns. A policy without this table is frozen."""

    steps: Annotated[int, doc("optimizer steps; the run ends when every policy has done its own", ge=1)]
    batch_groups: Annotated[int, doc("groups per optimizer step", ge=1)] = 8
    learner: Annotated[Literal["torch", "toy"], doc("toy: no torch, for tests and benchmarks")] = "torch"
    learning_rate: Annotated[float, doc("AdamW step size after warm-up", ge=0)] = 1e-5
    warmup_steps: Annotated[int, doc("steps of linear learning-rate warm-up", ge=0)] = 0
    schedule: Annotated[
        Literal["constant", "linear", "cosine"],
        doc("learning rate after warm-up: as it is, or falling along a line or half a cosine over the other `steps`"),
    ] = "constant"
    beta1: Annotated[float, doc("AdamW: decay of the mean gradient", ge=0, lt=1)] = 0.9
    beta2: Annotated[float, doc("AdamW: decay of the mean squared gradient", ge=0, lt=1)] = 0.95
    weight_decay: Annotated[float, doc("AdamW: decoupled weight decay per step, times the learning rate", ge=0)] = 0.0
    max_grad_norm: Annotated[float, doc("gradients are clipped to this norm", gt=0)] = 1.0
    loss: LossSection = LossSection()
    critic: Annotated[CriticSection | None, doc("absent: there is none")] = None
    updates_per_batch: Annotated[
        int,
        doc(
            "optimizer updates per batch, each on a share of the groups at full learning_rate; steps count batches",
            ge=1,
        ),
    ] = 1
    advantage: Annotated[
        Literal["grpo", "dr-grpo", "rloo", "reward", "gae"],
        doc(
            "a group's rewards less their mean, over their deviation · less their mean · leave-one-out · as they are ·"
            " per token, by a critic"
        ),
    ] = "grpo"
    overlong_penalty: Annotated[
        float, doc("taken off the reward of a reply of max_new_tokens, and less in the window before", ge=0)
    ] = 0.0
    overlong_window: Annotated[float, doc("share of max_new_tokens where it rises from 0", gt=0, le=1)] = 0.2
    filters: Annotated[
        tuple[str, ...], doc("groups that are not trained: zero-advantage, truncated, or module:Class of your own")
    ] = ("zero-advantage",)
    filter_args: Annotated[dict[str, Any], doc("keyword arguments by filter, e.g. {truncated = {most = 0.3}}")] = field(
        default_factory=dict
    )
    replay: ReplaySection = ReplaySection()
    max_staleness: Annotated[
        int, doc("steps between sampling and training, at most; an older member is left out of its group", ge=0)
    ] = 1
    prefetch: Annotated[int, doc("batches bound ahead of the trainer; 0 if max_staleness = 0", ge=0)] = 1
    micro_batch_tokens: Annotated[int, doc("tokens per forward pass, padding included", ge=16)] = 2048
    device: Annotated[
        Literal["auto", "cuda", "cpu"],
        doc("where the torch learner computes; auto: on the GPU that torch sees, else on the CPU"),
    ] = "cpu"
    dtype: Annotated[Literal["auto", "bf16", "fp32"], doc("of weights and activations; the master is fp32")] = "auto"
    activation_checkpointing: Annotated[
        bool, doc("compute each layer anew in the backward pass instead of keeping what is inside it: less memory")
    ] = False
    dither: Annotated[bool, doc("start the fp32 master inside its bf16 cell, see docs/decisions")] = True
    ranks: RanksSection = RanksSection()
    checkpoint_every: Annotated[int, doc("steps between checkpoints", ge=1)] = 10
    keep_checkpoints: Annotated[int, doc("checkpoints kept on disk", ge=1)] = 2
    max_bad_steps: Annotated[int, doc("consecutive NaN steps before the trainer stops", ge=1)] = 3
    full_every: Annotated[int, doc("versions between full snapshots; the others are exact deltas", ge=1)] = 50
    toy_step_s: Annotated[float, doc("toy learner: seconds per step", ge=0)] = 0.0
