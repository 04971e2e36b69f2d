"""Every metric and gauge that actors publish: name, unit, meaning. One table; actors import the constants.

It computes nothing. A name is `<kind>.<what>`; it is the key in `Metrics.values`, in `Member.gauges`, in metrics.jsonl.
"""

from collections.abc import Mapping
from dataclasses import dataclass

TRAIN, EVAL, ROLLOUT, DATAFLOW, WEIGHTS = "train", "eval", "rollout", "dataflow", "weights"  # Metrics.kind

LABEL_SET = "set"  # Metrics.labels of kind eval: name of the [eval.<name>] table
LABEL_ROUND = "round"  # Metrics.labels of kind eval: number of the evaluation of that set, from 0


@dataclass(frozen=True)
class MetricInfo:
    name: str
    unit: str
    meaning: str


TABLE: dict[str, MetricInfo] = {}  # by name


def _metric(name: str, unit: str, meaning: str) -> str:
    assert name not in TABLE, name
    TABLE[name] = MetricInfo(name, unit, meaning)
    return name


# kind train, one message per optimizer step of a policy: step, version, batch and lineage are set. step counts
# optimizer steps done, this one included, and version is what the step produced.
TRAIN_REWARD_MEAN = _metric("train.reward_mean", "reward", "mean over the batch's samples, after the filters")
TRAIN_ADVANTAGE_ABS_MEAN = _metric(
    "train.advantage_abs_mean",
    "advantage",
    "mean absolute advantage over the batch's samples; with a critic, of their rewards",
)
TRAIN_LOSS = _metric("train.loss", "loss", "the objective that was minimised")
TRAIN_GRAD_NORM = _metric("train.grad_norm", "norm", "global gradient norm before clipping")
TRAIN_LR = _metric("train.lr", "1", "step size of this step")
TRAIN_TOKENS = _metric("train.tokens", "tokens", "sampled tokens that were trained")
TRAIN_COMPUTED_TOKENS = _metric("train.computed_tokens", "tokens", "positions through the model, padding included")
TRAIN_MICRO_BATCHES = _metric("train.micro_batches", "passes", "forward and backward passes")
TRAIN_SKIPPED_SAMPLES = _metric("train.skipped_samples", "samples", "not computed: their advantage is 0")
TRAIN_ENTROPY = _metric("train.entropy", "nat", "mean of -(the engine's logprobs): estimates the policy's entropy")
TRAIN_SAMPLES = _metric("train.samples", "samples", "trajectories in the batch")
TRAIN_GROUPS = _metric("train.groups", "groups", "groups in the batch")
TRAIN_SECONDS = _metric("train.seconds", "s", "wall time of the learner's step")
TRAIN_WAIT_S = _metric("train.wait_s", "s", "wall time waited for this batch")
TRAIN_FORWARD_S = _metric("train.forward_s", "s", "forward passes")
TRAIN_BACKWARD_S = _metric("train.backward_s", "s", "backward passes")
TRAIN_OPTIMIZER_S = _metric("train.optimizer_s", "s", "clipping and optimizer")
TRAIN_MISMATCH = _metric(
    "train.mismatch", "nat", "mean absolute difference of engine and learner logprob over sampled tokens"
)
TRAIN_MISMATCH_AT = _metric(
    "train.mismatch_at_", "nat", "followed by a temperature: the mean over what was sampled at it, if there are several"
)
TRAIN_MISMATCH_MAX = _metric("train.mismatch_max", "nat", "the largest such difference")
TRAIN_APPROX_KL = _metric("train.approx_kl", "nat", "KL estimate between behaviour and current policy")
TRAIN_MEAN_RATIO = _metric("train.mean_ratio", "1", "mean importance ratio")
TRAIN_RATIO_MAX = _metric("train.ratio_max", "1", "the largest importance ratio")
TRAIN_ESS = _metric("train.ess", "1", "effective sample size of the importance ratios over tokens; 1 = on-policy")
TRAIN_SECOND_MOMENT = _metric("train.second_moment", "nat^2", "mean squared log importance ratio")
TRAIN_CLIP_FRACTION = _metric("train.clip_fraction", "1", "share of sampled tokens whose ratio is clipped")
TRAIN_MASKED_FRACTION = _metric(
    "train.masked_fraction", "1", "share of sampled tokens that a mask left out of the loss"
)
TRAIN_REFERENCE_KL = _metric("train.reference_kl", "nat", "KL estimate between current policy and reference model")
TRAIN_TOKEN_ENTROPY = _metric("train.token_entropy", "nat", "mean entropy of the sampled tokens' distributions")
TRAIN_VALUE_LOSS = _metric("train.value_loss", "reward^2", "critic: half the mean squared error of values, clipped")
TRAIN_VALUE_GRAD_NORM = _metric("train.value_grad_norm", "norm", "critic: of the head's gradient, before clipping")
TRAIN_VALUE_MEAN = _metric("train.value_mean", "reward", "critic: mean value of the batch's tokens, before the step")
TRAIN_RETURN_MEAN = _metric("train.return_mean", "reward", "critic: mean of the returns that values ought to be")
TRAIN_EXPLAINED_VARIANCE = _metric(
    "train.explained_variance", "1", "critic: 1 - Var(return - value) / Var(return); 0 = no better than a constant"
)
TRAIN_UPDATES = _metric("train.updates", "updates", "optimizer updates in this step")
TRAIN_SKIPPED_UPDATES = _metric("train.skipped_updates", "updates", "left out after one that was not finite")
TRAIN_PREPARE_S = _metric("train.prepare_s", "s", "forward passes for proximal and reference logprobs")
TRAIN_STALENESS_MEAN = _metric(
    "train.staleness_mean", "steps", "trainer step - step of a sample's oldest version, mean"
)
TRAIN_STALENESS_MAX = _metric("train.staleness_max", "steps", "the same, of the stalest sample")
TRAIN_SKIPPED = _metric("train.skipped", "0 or 1", "1 if the step was skipped: NaN, infinity or no tokens")

# kind eval, one message per policy, set and round: step and version are those that were evaluated.
EVAL_CORRECT = _metric("eval.correct", "1", "mean of correct over the episodes that have a notion of it: avg@repeats")
EVAL_CORRECT_SE = _metric("eval.correct_se", "1", "its standard error, from how the tasks differ")
EVAL_PASS_AT = _metric("eval.pass_at_", "1", "followed by k: the chance that one of k answers is right, unbiased")
EVAL_REWARD = _metric("eval.reward", "reward", "mean over the set's episodes")
EVAL_PART = _metric("eval.part.*", "reward", "a part of the reward by the name that grade() gave it, unweighted")
EVAL_REWARD_SE = _metric("eval.reward_se", "reward", "its standard error, from how the tasks differ")
EVAL_SIZE = _metric("eval.size", "episodes", "episodes that count in the means")
EVAL_FAILED = _metric("eval.failed", "episodes", "episodes without a valid reward; not in the means")
EVAL_VERSION_NEWEST = _metric("eval.version_newest", "version", "newest that answered; `version` is the oldest")
EVAL_SECONDS = _metric("eval.seconds", "s", "from the first task issued to the last episode")

# kind rollout, per rollout process, over the time since its previous message.
ROLLOUT_EPISODES = _metric("rollout.episodes", "episodes", "episodes that ended")
ROLLOUT_TOKENS = _metric("rollout.tokens", "tokens", "sampled tokens in them")
ROLLOUT_TOKENS_PER_S = _metric("rollout.tokens_per_s", "tokens/s", "sampled tokens per second")
ROLLOUT_TRUNCATED_FRACTION = _metric("rollout.truncated_fraction", "1", "share of episodes that ran out of budget")
ROLLOUT_FAILURES = _metric("rollout.failures", "episodes", "episodes that carry no reward, whatever the reason")
ROLLOUT_EPISODE_S = _metric("rollout.episode_s", "s", "mean wall time of an episode")
ROLLOUT_CONTINUATIONS = _metric("rollout.continuations", "requests", "generations continued on another replica")

# kind dataflow, one message per emitted batch of a policy: step is the step it is planned for.
DATAFLOW_REWARD_ALL = _metric(
    "dataflow.reward_all", "reward", "mean over all training episodes since the previous batch, filtered ones too"
)
DATAFLOW_FAILED_ALL = _metric(
    "dataflow.failed_all", "episodes", "those since the previous batch without a valid reward; in none of these means"
)
DATAFLOW_PART = _metric(
    "dataflow.part.*", "reward", "a part of the reward by the name that grade() gave it: mean over all, unweighted"
)
DATAFLOW_REWARD_EFFECTIVE = _metric(
    "dataflow.reward_effective", "reward", "mean over the episodes that are in the batch"
)
DATAFLOW_CORRECT_ALL = _metric(
    "dataflow.correct_all", "1", "mean of correct over all training episodes since the previous batch"
)
DATAFLOW_PASS_FRACTION = _metric("dataflow.pass_fraction", "1", "share of closed groups that passed the filters")
DATAFLOW_SKIPPED_TASKS = _metric(
    "dataflow.skipped_tasks", "tasks", "that selectors passed over since the previous batch"
)
DATAFLOW_REPLAYED_GROUPS = _metric("dataflow.replayed_groups", "groups", "groups in the batch that were trained before")
DATAFLOW_SELECT = _metric(
    "dataflow.select.*",
    "1",
    "what a source's selector tells: dataflow.select.<source>.p_easy and .p_hard of greso, .newest of levels",
)
DATAFLOW_CREDIT = _metric("dataflow.credit", "groups", "groups that may still be admitted")
DATAFLOW_OPEN_GROUPS = _metric("dataflow.open_groups", "groups", "groups with members in flight")
DATAFLOW_BUFFERED_GROUPS = _metric("dataflow.buffered_groups", "groups", "complete groups that wait to be emitted")

# kind weights, from the trainer (publish) and the policy replicas (apply); version is set.
WEIGHTS_PUBLISH_S = _metric("weights.publish_s", "s", "from export to the head being written")
WEIGHTS_ENCODE_S = _metric("weights.encode_s", "s", "of it: finding, packing and hashing what changed")
WEIGHTS_BYTES = _metric("weights.bytes", "B", "payload of the version on the wire: delta, or full if there is no delta")
WEIGHTS_FULL_BYTES = _metric("weights.full_bytes", "B", "payload of the full stored with this version; 0 = none")
WEIGHTS_CHANGED = _metric("weights.changed", "1", "share of the model's elements that changed; 1 if it isn't known")
WEIGHTS_APPLY_S = _metric("weights.apply_s", "s", "from seeing the head to generating with it")
WEIGHTS_TRANSFER_S = _metric("weights.transfer_s", "s", "of it: planning and fetching")
WEIGHTS_VERIFY_S = _metric("weights.verify_s", "s", "of it: decoding, applying to the shadow, verifying digests")
WEIGHTS_PREPARE_S = _metric("weights.prepare_s", "s", "of it: collecting and converting new values beside decoding")
WEIGHTS_PAUSE_S = _metric("weights.pause_s", "s", "of it: how long decoding stood still for the swap")
WEIGHTS_FETCHED_BYTES = _metric("weights.fetched_bytes", "B", "payloads that the replica fetched to get there")
WEIGHTS_LAG_VERSIONS = _metric("weights.lag_versions", "versions", "head - serving version when the swap began")
WEIGHTS_LAG_S = _metric("weights.lag_s", "s", "from the trainer's export to generating with it; both machines' clocks")

# Gauges, in Member.gauges: how an actor is right now.
POLICY_TOKENS_PER_S = _metric("policy.tokens_per_s", "tokens/s", "sampled tokens per second, recently")
POLICY_RUNNING = _metric("policy.running", "requests", "in a slot")
POLICY_WAITING = _metric("policy.waiting", "requests", "accepted, not in a slot yet")
POLICY_SLOTS = _metric("policy.slots", "requests", "capacity")
POLICY_VERSION = _metric("policy.version", "version", "serving")
POLICY_LAG_VERSIONS = _metric("policy.lag_versions", "versions", "newest loadable - serving")
POLICY_LAG_S = _metric("policy.lag_s", "s", "since when a newer version than the one served is loadable")
POLICY_KV_USAGE = _metric("policy.kv_usage", "1", "SGLang: share of the KV memory in use")
POLICY_CACHE_HIT_RATE = _metric(
    "policy.cache_hit_rate", "1", "SGLang: share of prompt tokens found in its prefix cache"
)
POLICY_SERVER_RUNNING = _metric("policy.server_running", "requests", "SGLang: running in the server")
POLICY_SERVER_QUEUED = _metric("policy.server_queued", "requests", "SGLang: waiting in the server")
POLICY_SERVER_TOKENS_PER_S = _metric("policy.server_tokens_per_s", "tokens/s", "SGLang: sampled, as the server says")
POLICY_RETRACTED = _metric("policy.retracted", "requests", "SGLang: so far, gave their KV memory back and began anew")
POLICY_CONTINUED = _metric("policy.continued", "requests", "SGLang: so far, dropped by the server and continued")
POLICY_RELABELLED = _metric(
    "policy.relabelled_tokens",
    "tokens",
    "SGLang: so far, passed on under another version than the server named at the end",
)
POLICY_WANTS_FULL = _metric(
    "policy.wants_full", "sequence", "newest full that it can't use; the trainer publishes another one"
)
ROLLOUT_RUNNING = _metric("rollout.running", "episodes", "in work")
ROLLOUT_SLOTS = _metric("rollout.slots", "episodes", "capacity")
ROLLOUT_CONTINUED = _metric("rollout.continued", "requests", "attempts continued elsewhere or sent again, so far")
ROLLOUT_WASTED_CHUNKS = _metric("rollout.wasted_chunks", "messages", "from replicas that an attempt was not of, so far")
ROLLOUT_DIRECT = _metric("rollout.direct", "requests", "taken by the replica that holds their prefix, so far")
ROLLOUT_DIRECT_MISSED = _metric("rollout.direct_missed", "requests", "that it did not take, so far")
BUS_DUPLICATES = _metric("bus.duplicates", "messages", "published again although they had been stored, so far")
BUS_DROPPED = _metric("bus.dropped", "messages", "unstored messages and events that were not sent or read, so far")
BUS_ACKS_LOST = _metric("bus.acks_lost", "acks", "not sent within the ack wait, so far")
BUS_MALFORMED = _metric("bus.malformed", "messages", "that could not be read, dead letters included, so far")
TRAINER_STEP = _metric("trainer.step", "steps", "optimizer steps done")
TRAINER_VERSION = _metric("trainer.version", "version", "newest published")
RECORDER_METRICS = _metric("recorder.metrics", "sequence", "newest entry of METRICS that is durably in metrics.jsonl")
RECORDER_EVENTS = _metric("recorder.events", "sequence", "newest entry of EVENTS that is durably in events.jsonl")
RECORDER_EPISODES = _metric("recorder.episodes", "sequence", "newest entry of EPISODES that is durably recorded")
NODE_FREE_SLOTS = _metric("node.free_slots", "processes", "more that a node would serve; absent: it takes no roles")


_BUS_COUNTERS = {  # reasons as `Bus.counters` has them, or their first word
    "publish.duplicates": BUS_DUPLICATES,
    "core.unsent": BUS_DROPPED,
    "core.dropped": BUS_DROPPED,
    "events.dropped": BUS_DROPPED,
    "queue.acks_lost": BUS_ACKS_LOST,
    "core.malformed": BUS_MALFORMED,
    "dead_letters": BUS_MALFORMED,
}


def bus_gauges(counters: Mapping[str, int]) -> dict[str, float]:
    """What a bus counted as gauges; those that are 0 are left out."""
    gauges: dict[str, float] = {}
    for reason, count in counters.items():
        name = _BUS_COUNTERS.get(reason) or _BUS_COUNTERS.get(reason.partition(".")[0])
        if name is not None:
            gauges[name] = gauges.get(name, 0) + count
    return gauges


def named(kind: str, values: Mapping[str, float]) -> dict[str, float]:
    """{"loss": 0.1} of kind train → {"train.loss": 0.1}: for values that a learner or engine reports without prefix."""
    return {f"{kind}.{name}": value for name, value in values.items()}


def describe() -> str:
    """The table as Markdown: name, unit, meaning."""
    rows = [f"| `{info.name}` | {info.unit} | {info.meaning} |" for info in TABLE.values()]
    return "\n".join(["| metric | unit | meaning |", "|---|---|---|", *rows]) + "\n"
