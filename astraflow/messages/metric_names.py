"""Every metric and gauge that a run reports: name, unit, meaning. One table; whoever reports a number imports its name.

It computes nothing. A name is `<kind>.<what>`; it is the key in `Metrics.values`, in `Member.gauges`, in metrics.jsonl.
Invariant: no other module spells a name (tests/test_metric_names.py).
"""

import re
from dataclasses import dataclass, field

TRAIN, EVAL, ROLLOUT, DATAFLOW, WEIGHTS = "train", "eval", "rollout", "dataflow", "weights"  # Metrics.kind
METRIC_KINDS = (TRAIN, EVAL, ROLLOUT, DATAFLOW, WEIGHTS)
GAUGE = "gauge"  # no kind of Metrics: a number in Member.gauges

LABEL_SET = "set"  # Metrics.labels of kind eval: name of the [eval.<name>] table
LABEL_ROUND = "round"  # Metrics.labels of kind eval: number of the evaluation of that set, from 0


@dataclass(frozen=True)
class MetricInfo:
    """One row. `kind` is that of the `Metrics` that carry it, or GAUGE."""

    name: str
    kind: str
    unit: str
    meaning: str


@dataclass(frozen=True)
class MetricFamily:
    """Metrics whose names have a part that the run decides: `eval.pass_at_<k>`."""

    pattern: str
    _form: "re.Pattern[str]" = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        form = "".join("(.+)" if part.startswith("<") else re.escape(part) for part in _PLACES.split(self.pattern))
        object.__setattr__(self, "_form", re.compile(form))

    def of(self, *parts: str | int) -> str:
        """The name of one member: the parts in the order in which the pattern has them."""
        values = iter(parts)
        name = _PLACES.sub(lambda _: str(next(values)), self.pattern)
        assert next(values, None) is None, (self.pattern, parts)
        return name

    def parts(self, name: str) -> tuple[str, ...] | None:
        """What `of` was given; None for a name of another family."""
        found = self._form.fullmatch(name)
        return found.groups() if found else None


_PLACES = re.compile(r"(<\w+>)")
TABLE: dict[str, MetricInfo] = {}  # by name, or by pattern
FAMILIES: list[MetricFamily] = []


def known(name: str) -> bool:
    """Whether the table has it, by name or by pattern."""
    return name in TABLE or any(family.parts(name) is not None for family in FAMILIES)


def _metric(name: str, unit: str, meaning: str, *, kind: str = "") -> str:
    assert name not in TABLE, name
    TABLE[name] = MetricInfo(name, kind or name.partition(".")[0], unit, meaning)
    return name


def _gauge(name: str, unit: str, meaning: str) -> str:
    return _metric(name, unit, meaning, kind=GAUGE)


def _family(pattern: str, unit: str, meaning: str, *, kind: str = "") -> MetricFamily:
    FAMILIES.append(MetricFamily(_metric(pattern, unit, meaning, kind=kind)))
    return FAMILIES[-1]


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
TRAIN_MISMATCH_AT = _family(
    "train.mismatch_at_<temperature>", "nat", "the mean over what was sampled at it, if there are several temperatures"
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
EVAL_PASS_AT = _family("eval.pass_at_<k>", "1", "the chance that one of k answers is right, unbiased")
EVAL_REWARD = _metric("eval.reward", "reward", "mean over the set's episodes")
EVAL_PART = _family("eval.part.<name>", "reward", "a part of the reward by the name that grade() gave it, unweighted")
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
DATAFLOW_PART = _family(
    "dataflow.part.<name>", "reward", "a part of the reward by the name that grade() gave it: mean over all, unweighted"
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
DATAFLOW_SELECT = _family(
    "dataflow.select.<source>.<what>",
    "1",
    "told by a source's selector: p_easy and p_hard of greso, newest of levels",
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
WEIGHTS_VERIFY_S = _metric("weights.verify_s", "s", "of it: decoding, applying to the host copy, verifying digests")
WEIGHTS_PREPARE_S = _metric("weights.prepare_s", "s", "of it: collecting and converting new values beside decoding")
WEIGHTS_PAUSE_S = _metric("weights.pause_s", "s", "of it: how long decoding stood still for the swap")
WEIGHTS_FETCHED_BYTES = _metric("weights.fetched_bytes", "B", "payloads that the replica fetched to get there")
WEIGHTS_LAG_VERSIONS = _metric("weights.lag_versions", "versions", "head - serving version when the swap began")
WEIGHTS_LAG_S = _metric("weights.lag_s", "s", "from the trainer's export to generating with it; both machines' clocks")

# Gauges, in Member.gauges: how an actor is right now.
POLICY_TOKENS_PER_S = _gauge("policy.tokens_per_s", "tokens/s", "sampled tokens per second, recently")
POLICY_RUNNING = _gauge("policy.running", "requests", "in a slot")
POLICY_WAITING = _gauge("policy.waiting", "requests", "accepted, not in a slot yet")
POLICY_SLOTS = _gauge("policy.slots", "requests", "capacity")
POLICY_VERSION = _gauge("policy.version", "version", "serving")
POLICY_LAG_VERSIONS = _gauge("policy.lag_versions", "versions", "newest loadable - serving")
POLICY_LAG_S = _gauge("policy.lag_s", "s", "since when a newer version than the one served is loadable")
POLICY_KV_USAGE = _gauge("policy.kv_usage", "1", "SGLang: share of the KV memory in use")
POLICY_CACHE_HIT_RATE = _gauge("policy.cache_hit_rate", "1", "SGLang: share of prompt tokens found in its prefix cache")
POLICY_SERVER_RUNNING = _gauge("policy.server_running", "requests", "SGLang: running in the server")
POLICY_SERVER_QUEUED = _gauge("policy.server_queued", "requests", "SGLang: waiting in the server")
POLICY_SERVER_TOKENS_PER_S = _gauge("policy.server_tokens_per_s", "tokens/s", "SGLang: sampled, as the server says")
POLICY_RETRACTED = _gauge("policy.retracted", "requests", "SGLang: so far, gave their KV memory back and began anew")
POLICY_CONTINUED = _gauge("policy.continued", "requests", "SGLang: so far, dropped by the server and continued")
POLICY_RELABELLED = _gauge(
    "policy.relabelled_tokens",
    "tokens",
    "SGLang: so far, passed on under another version than the server named at the end",
)
POLICY_WANTS_FULL = _gauge(
    "policy.wants_full", "sequence", "newest full that it can't use; the trainer publishes another one"
)
ROLLOUT_RUNNING = _gauge("rollout.running", "episodes", "in work")
ROLLOUT_SLOTS = _gauge("rollout.slots", "episodes", "capacity")
ROLLOUT_CONTINUED = _gauge("rollout.continued", "requests", "attempts continued elsewhere or sent again, so far")
ROLLOUT_WASTED_CHUNKS = _gauge("rollout.wasted_chunks", "messages", "from replicas that an attempt was not of, so far")
ROLLOUT_DIRECT = _gauge("rollout.direct", "requests", "taken by the replica that holds their prefix, so far")
ROLLOUT_DIRECT_MISSED = _gauge("rollout.direct_missed", "requests", "that it did not take, so far")
DATAFLOW_READY_GROUPS = _family(
    "dataflow.buffered_groups.<policy>", "groups", "complete groups that wait to be emitted, as of now", kind=GAUGE
)
BUS_DUPLICATES = _gauge("bus.duplicates", "messages", "published again although they had been stored, so far")
BUS_DROPPED = _gauge("bus.dropped", "messages", "unstored messages and events that were not sent or read, so far")
BUS_ACKS_LOST = _gauge("bus.acks_lost", "acks", "not sent within the ack wait, so far")
BUS_MALFORMED = _gauge("bus.malformed", "messages", "that could not be read, dead letters included, so far")
TRAINER_STEP = _gauge("trainer.step", "steps", "optimizer steps done")
TRAINER_VERSION = _gauge("trainer.version", "version", "newest published")
RECORDER_METRICS = _gauge("recorder.metrics", "sequence", "newest entry of METRICS that is durably in metrics.jsonl")
RECORDER_EVENTS = _gauge("recorder.events", "sequence", "newest entry of EVENTS that is durably in events.jsonl")
RECORDER_EPISODES = _gauge("recorder.episodes", "sequence", "newest entry of EPISODES that is durably recorded")
NODE_FREE_SLOTS = _gauge("node.free_slots", "processes", "more that a node would serve; absent: it takes no roles")
