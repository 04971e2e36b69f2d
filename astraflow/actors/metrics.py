"""Every metric and gauge that actors publish: name, unit, meaning. One table; actors import the members.

A member is a str, so it is used as a key: `Metrics(kind=TRAIN, values={Train.LOSS: 0.1}, ...)`.
It computes nothing. In files and pictures a metric is called `<kind>.<name>`, e.g. `train.loss`.
"""

from enum import StrEnum
from typing import Self

LABEL_SET = "set"  # Metrics.labels of kind eval: name of the [eval.<name>] table
LABEL_ROUND = "round"  # Metrics.labels of kind eval: number of the evaluation of that set, from 0


class Metric(StrEnum):
    """A name that knows its unit and meaning."""

    unit: str
    meaning: str

    def __new__(cls, name: str, unit: str, meaning: str) -> Self:
        member = str.__new__(cls, name)
        member._value_ = name
        member.unit = unit
        member.meaning = meaning
        return member


class Train(Metric):
    """kind `train`, one message per optimizer step of a policy: step, version, batch and lineage are set.

    `step` counts optimizer steps done, this one included, and `version` is what the step produced.
    """

    REWARD_MEAN = "reward_mean", "reward", "mean over the batch's samples, after the filters"
    ADVANTAGE_ABS_MEAN = "advantage_abs_mean", "advantage", "mean absolute advantage over the batch's samples"
    LOSS = "loss", "loss", "the objective that was minimised"
    GRAD_NORM = "grad_norm", "norm", "global gradient norm before clipping"
    LEARNING_RATE = "lr", "1", "step size of this step"
    TOKENS = "tokens", "tokens", "sampled tokens that were trained"
    SAMPLES = "samples", "samples", "trajectories in the batch"
    GROUPS = "groups", "groups", "groups in the batch"
    SECONDS = "seconds", "s", "wall time of the learner's step"
    WAIT_S = "wait_s", "s", "wall time waited for this batch"
    FORWARD_S = "forward_s", "s", "forward passes"
    BACKWARD_S = "backward_s", "s", "backward passes"
    OPTIMIZER_S = "optimizer_s", "s", "clipping and optimizer"
    MISMATCH = "mismatch", "nat", "mean absolute difference of engine and learner logprob over sampled tokens"
    APPROX_KL = "approx_kl", "nat", "KL estimate between behaviour and current policy"
    MEAN_RATIO = "mean_ratio", "1", "mean importance ratio"
    CLIP_FRACTION = "clip_fraction", "1", "share of sampled tokens whose ratio is clipped"
    STALENESS_MEAN = "staleness_mean", "steps", "trainer step - step of a sample's oldest version, mean"
    STALENESS_MAX = "staleness_max", "steps", "the same, of the stalest sample"
    SKIPPED = "skipped", "0 or 1", "1 if the step was skipped: NaN, infinity or no tokens"


class Eval(Metric):
    """kind `eval`, one message per policy, set and round: step and version are those that were evaluated."""

    CORRECT = "correct", "1", "mean of correct over the episodes that have a notion of it"
    REWARD = "reward", "reward", "mean over the set's episodes"
    SIZE = "size", "episodes", "episodes that count in the means"
    FAILED = "failed", "episodes", "episodes without a valid reward; not in the means"
    SECONDS = "seconds", "s", "from the first task issued to the last episode"


class Rollout(Metric):
    """kind `rollout`, per rollout process, over the time since its previous message."""

    EPISODES = "episodes", "episodes", "episodes that ended"
    TOKENS = "tokens", "tokens", "sampled tokens in them"
    TOKENS_PER_S = "tokens_per_s", "tokens/s", "sampled tokens per second"
    TRUNCATED_FRACTION = "truncated_fraction", "1", "share of episodes that ran out of budget"
    FAILURES = "failures", "episodes", "episodes that carry no reward, whatever the reason"
    EPISODE_S = "episode_s", "s", "mean wall time of an episode"
    CONTINUATIONS = "continuations", "requests", "generations continued on another replica"


class Dataflow(Metric):
    """kind `dataflow`, one message per emitted batch of a policy: step is the step it is planned for."""

    REWARD_ALL = "reward_all", "reward", "mean over all training episodes since the previous batch, filtered ones too"
    REWARD_EFFECTIVE = "reward_effective", "reward", "mean over the episodes that are in the batch"
    CORRECT_ALL = "correct_all", "1", "mean of correct over all training episodes since the previous batch"
    PASS_FRACTION = "pass_fraction", "1", "share of closed groups that passed the filters"
    CREDIT = "credit", "groups", "groups that may still be admitted"
    OPEN_GROUPS = "open_groups", "groups", "groups with members in flight"
    BUFFERED_GROUPS = "buffered_groups", "groups", "complete groups that wait to be emitted"


class Weights(Metric):
    """kind `weights`, from the trainer (publish) and the policy replicas (apply); version is set."""

    PUBLISH_S = "publish_s", "s", "from export to the head being written"
    BYTES = "bytes", "B", "payload of the version on the wire"
    APPLY_S = "apply_s", "s", "from seeing the head to generating with it"
    PAUSE_S = "pause_s", "s", "how long decoding stood still for the swap"
    LAG_VERSIONS = "lag_versions", "versions", "head - serving version when the swap began"


class Gauge(Metric):
    """Names in `Member.gauges`: how an actor is right now."""

    TOKENS_PER_S = "tokens_per_s", "tokens/s", "policy: sampled tokens per second, recently"
    RUNNING = "running", "requests or episodes", "policy, rollout: in work"
    WAITING = "waiting", "requests", "policy: accepted, not in a slot yet"
    SLOTS = "slots", "requests or episodes", "policy, rollout: capacity"
    VERSION = "version", "version", "policy: serving; trainer: newest published"
    STEP = "step", "steps", "trainer: optimizer steps done"


TRAIN, EVAL, ROLLOUT, DATAFLOW, WEIGHTS = "train", "eval", "rollout", "dataflow", "weights"  # Metrics.kind
TABLE: dict[str, type[Metric]] = {
    TRAIN: Train,
    EVAL: Eval,
    ROLLOUT: Rollout,
    DATAFLOW: Dataflow,
    WEIGHTS: Weights,
}


def describe() -> str:
    """The table as Markdown: one row per metric, `<kind>.<name>`, unit, meaning."""
    rows = ["| metric | unit | meaning |", "|---|---|---|"]
    for kind, names in TABLE.items():
        rows += [f"| `{kind}.{name}` | {name.unit} | {name.meaning} |" for name in names]
    rows += [f"| gauge `{name}` | {name.unit} | {name.meaning} |" for name in Gauge]
    return "\n".join(rows) + "\n"
