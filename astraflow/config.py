"""The run file's schema: one frozen tree, unknown keys rejected, every number with its unit.

Only data: reading TOML, `--set`, nearest-name errors and cross-checks are in `runfile.py`. No environment reads.
"""

import ipaddress
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

Name = Annotated[str, Meta(pattern=r"^[a-z0-9-]{1,32}$", description="lower-case letters, digits and dashes")]
Positive = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0)]
Fraction = Annotated[float, Meta(ge=0, le=1)]


def _doc(text: str, **rules: Any) -> Meta:
    return Meta(description=text, **rules)


class RunSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[run]: name, seed and where results go."""

    name: Annotated[Name, _doc("names the run on the bus and its folder: [a-z0-9-], at most 32")]
    seed: Annotated[int, _doc("seeds sources, sampling, shuffling and dithering", ge=0)] = 0
    folder: Annotated[str, _doc("results go to <folder>/<name>")] = "runs"
    deterministic: Annotated[bool, _doc("one replica, no staleness, ordered admission: bit-repeatable")] = False


class SamplingSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[policies.<name>.sampling]: how tokens are sampled."""

    max_new_tokens: Annotated[int, _doc("tokens per completion, at most", ge=1)] = 256
    temperature: Annotated[float, _doc("0 is greedy", ge=0)] = 1.0
    top_k: Annotated[int, _doc("0 is off", ge=0)] = 0
    top_p: Annotated[float, _doc("1 is off", gt=0, le=1)] = 1.0


class EngineSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[policies.<name>.engine]: what serves the policy."""

    kind: Annotated[Literal["cpu", "toy"], _doc("cpu: slot decoder on torch; toy: deterministic, for tests")] = "cpu"
    slots: Annotated[int, _doc("requests decoded together", ge=1)] = 64
    context_length: Annotated[int, _doc("tokens per sequence, prompt included; 0 = the model's own", ge=0)] = 0
    dtype: Annotated[Literal["auto", "bf16", "fp32"], _doc("auto: bf16 where the CPU is fast at it")] = "auto"
    replicas: Annotated[int, _doc("policy processes that `up` starts", ge=0)] = 1
    prefill_tokens: Annotated[int, _doc("prompt tokens prefilled between two decode steps", ge=1)] = 2048
    max_replica_lag: Annotated[int, _doc("a replica that is more versions behind takes no requests", ge=0)] = 1
    kv_cache_mib: Annotated[int, _doc("memory for keys and values; requests wait for room in it", ge=1)] = 4096
    toy_step_s: Annotated[float, _doc("toy engine: seconds per decode step", ge=0)] = 0.0


class LossSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[policies.<name>.trainer.loss]: what is minimised: objective, correction, regularisers, aggregation."""

    preset: Annotated[
        Literal[
            "none", "grpo", "dapo", "dual-clip", "dr-grpo", "rloo", "reinforce++", "reinforce++-baseline", "gspo",
            "cispo", "sapo", "m2po", "decoupled-ppo", "ppo",
        ],
        _doc("a published method: fills in the keys that the file leaves out, see below; none = they stand as here"),
    ] = "none"  # fmt: skip
    objective: Annotated[
        str, _doc("clip (PPO), ratio, logprob (REINFORCE), cispo, sapo, or module:function of your own")
    ] = "clip"
    args: Annotated[dict[str, Any], _doc("keyword arguments of a function of your own")] = field(default_factory=dict)
    ratio: Annotated[
        Literal["token", "sequence"], _doc("sequence: the geometric mean over a sample's tokens (GSPO)")
    ] = "token"
    clip_low: Annotated[float, _doc("importance ratio is clipped at 1 - clip_low", ge=0, le=1)] = 0.2
    clip_high: Annotated[float, _doc("importance ratio is clipped at 1 + clip_high", ge=0)] = 0.28
    dual_clip: Annotated[float, _doc("ratio is clipped here too where the advantage is negative; 0 = off", ge=0)] = 0.0
    tau_positive: Annotated[float, _doc("sapo: steepness of the gate where the advantage is positive", gt=0)] = 1.0
    tau_negative: Annotated[float, _doc("sapo: steepness of the gate elsewhere", gt=0)] = 1.05
    m2_threshold: Annotated[
        float, _doc("M2PO: mean squared log ratio of outward tokens, at most; 0 = off, else 0.01 is usual", ge=0)
    ] = 0.0
    proximal: Annotated[
        Literal["behaviour", "recompute"],
        _doc("ratios are taken against the engine's logprobs, or the learner's at the start of the batch"),
    ] = "behaviour"
    correction: Annotated[
        Literal["none", "truncate", "mask"], _doc("weights of proximal over behaviour: bounded, or 0 out of bounds")
    ] = "none"
    correction_level: Annotated[Literal["token", "sequence"], _doc("a weight per token, or their product")] = "token"
    correction_cap: Annotated[float, _doc("largest weight", gt=0)] = 2.0
    correction_floor: Annotated[float, _doc("mask: smallest weight", ge=0)] = 0.0
    kl: Annotated[float, _doc("weight of the KL to the starting model; above 0 the trainer keeps a copy", ge=0)] = 0.0
    kl_estimator: Annotated[Literal["k1", "k2", "k3"], _doc("k1 is for rewards, k2 and k3 are for losses")] = "k3"
    kl_in: Annotated[Literal["loss", "reward"], _doc("reward: taken off each token's return")] = "loss"
    entropy_bonus: Annotated[float, _doc("weight of the mean entropy of a token's distribution", ge=0)] = 0.0
    normalise: Annotated[
        Literal["none", "batch", "task"],
        _doc("advantages to mean 0 and deviation 1 over the batch's tokens, or over those of each environment"),
    ] = "none"
    aggregation: Annotated[
        Literal["token-mean", "sequence-mean", "constant"],
        _doc("constant: tokens are summed and divided by samples times aggregation_constant"),
    ] = "token-mean"
    aggregation_constant: Annotated[int, _doc("tokens; 0 = sampling.max_new_tokens", ge=0)] = 0


class CriticSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[policies.<name>.trainer.critic]: a value head on the policy's own last hidden states; advantages are then GAE's.

    It is trained and checkpointed with the policy and never published. With this table, `advantage` defaults to "gae",
    `filters` to none (a group of equal rewards teaches too) and `loss.normalise` to "batch".
    """

    gamma: Annotated[float, _doc("discount per sampled token", ge=0, le=1)] = 1.0
    gae_lambda: Annotated[float, _doc("1: what really came, less the value; 0: one token ahead", ge=0, le=1)] = 0.95
    learning_rate: Annotated[float, _doc("AdamW step size of the head, in units of reward", gt=0)] = 0.01
    coefficient: Annotated[
        float, _doc("weight of the value loss in the gradient of the policy's backbone; 0: only the head learns", ge=0)
    ] = 0.0
    value_clip: Annotated[
        float, _doc("a value that moved this far to its return since the batch began stops there; 0 = off", ge=0)
    ] = 0.2
    warmup_steps: Annotated[int, _doc("steps of the critic alone, before the policy is trained", ge=0)] = 0


class ReplaySection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[policies.<name>.trainer.replay]: groups that are trained again."""

    kind: Annotated[str, _doc("none, latest, uniform, prioritized, or module:Class of your own")] = "none"
    args: Annotated[dict[str, Any], _doc("keyword arguments of that")] = field(default_factory=dict)
    share: Annotated[float, _doc("part of a batch that is replayed, at most", ge=0, lt=1)] = 0.25
    max_uses: Annotated[int, _doc("batches that a group is in, its first included", ge=2)] = 2
    max_staleness: Annotated[int, _doc("steps between sampling and training; 0 = the trainer's bound", ge=0)] = 0
    capacity: Annotated[int, _doc("groups that are remembered; the oldest go", ge=1)] = 256


class TrainerSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[policies.<name>.trainer]: how it learns. A policy without this table is frozen."""

    steps: Annotated[int, _doc("optimizer steps; the run ends when every policy has done its own", ge=1)]
    batch_groups: Annotated[int, _doc("groups per optimizer step", ge=1)] = 8
    learner: Annotated[Literal["torch", "toy"], _doc("toy: no torch, for tests and benchmarks")] = "torch"
    learning_rate: Annotated[float, _doc("AdamW step size after warm-up", ge=0)] = 1e-5
    warmup_steps: Annotated[int, _doc("steps of linear learning-rate warm-up", ge=0)] = 0
    beta1: Annotated[float, _doc("AdamW: decay of the mean gradient", ge=0, lt=1)] = 0.9
    beta2: Annotated[float, _doc("AdamW: decay of the mean squared gradient", ge=0, lt=1)] = 0.95
    weight_decay: Annotated[float, _doc("AdamW: decoupled weight decay per step, times the learning rate", ge=0)] = 0.0
    max_grad_norm: Annotated[float, _doc("gradients are clipped to this norm", gt=0)] = 1.0
    loss: LossSection = LossSection()
    critic: Annotated[CriticSection | None, _doc("absent: there is none")] = None
    updates_per_batch: Annotated[
        int,
        _doc(
            "optimizer updates per batch, each on a share of the groups at full learning_rate; steps count batches",
            ge=1,
        ),
    ] = 1
    advantage: Annotated[
        Literal["grpo", "dr-grpo", "rloo", "reward", "gae"],
        _doc(
            "a group's rewards less their mean, over their deviation · less their mean · leave-one-out · as they are ·"
            " per token, by a critic"
        ),
    ] = "grpo"
    overlong_penalty: Annotated[
        float, _doc("taken off the reward of a reply of max_new_tokens, and less in the window before", ge=0)
    ] = 0.0
    overlong_window: Annotated[float, _doc("share of max_new_tokens where it rises from 0", gt=0, le=1)] = 0.2
    filters: Annotated[
        tuple[str, ...], _doc("groups that are not trained: zero-advantage, truncated, or module:Class of your own")
    ] = ("zero-advantage",)
    filter_args: Annotated[dict[str, Any], _doc("keyword arguments by filter, e.g. {truncated = {most = 0.3}}")] = (
        field(default_factory=dict)
    )
    replay: ReplaySection = ReplaySection()
    max_staleness: Annotated[int, _doc("steps between sampling and training, at most", ge=0)] = 1
    prefetch: Annotated[int, _doc("batches bound ahead of the trainer; 0 if max_staleness = 0", ge=0)] = 1
    micro_batch_tokens: Annotated[int, _doc("tokens per forward pass, padding included", ge=16)] = 2048
    dtype: Annotated[Literal["auto", "bf16", "fp32"], _doc("of weights and activations; the master is fp32")] = "auto"
    dither: Annotated[bool, _doc("start the fp32 master inside its bf16 cell, see docs/decisions")] = True
    checkpoint_every: Annotated[int, _doc("steps between checkpoints", ge=1)] = 10
    keep_checkpoints: Annotated[int, _doc("checkpoints kept on disk", ge=1)] = 2
    max_bad_steps: Annotated[int, _doc("consecutive NaN steps before the trainer stops", ge=1)] = 3
    full_every: Annotated[int, _doc("versions between full snapshots; the others are exact deltas", ge=1)] = 50
    toy_step_s: Annotated[float, _doc("toy learner: seconds per step", ge=0)] = 0.0


class WeightsSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[policies.<name>.weights]: how full versions travel; deltas, which are small, always go over the bus."""

    full_transport: Annotated[
        Literal["nats", "file", "http"],
        _doc("nats: over the bus; file: through a shared folder; http: from the trainer's machine"),
    ] = "nats"
    full_on_nats: Annotated[
        bool, _doc("file: keep fulls on the bus too, for machines that don't have the folder; http always does")
    ] = True
    folder: Annotated[
        str, _doc("file: absolute path of the shared folder; http: what is served is kept there, empty = run folder")
    ] = ""
    listen: Annotated[
        str, _doc("http: HOST:PORT of the trainer's server, port 0 = any free one; TLS unless it is a loopback address")
    ] = "127.0.0.1:0"
    advertise: Annotated[str, _doc("http: name or address of that machine for readers; empty = the host of listen")] = (
        ""
    )


class PolicySection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[policies.<name>]: a model that is served, and trained if it has a trainer table."""

    model: Annotated[str, _doc("a folder, or smollm2-135m-instruct, or tiny-reverse, or tiny-add, or toy")]
    engine: EngineSection = EngineSection()
    sampling: SamplingSection = SamplingSection()
    trainer: Annotated[TrainerSection | None, _doc("absent: the policy is frozen")] = None
    weights: WeightsSection = WeightsSection()


class EnvSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[envs.<name>]: an environment."""

    kind: Annotated[str, _doc("reasoning-gym, math, tiny, toy, or module:Class of your own")]
    args: Annotated[dict[str, Any], _doc("keyword arguments of the environment")] = field(default_factory=dict)
    agent: Annotated[
        str, _doc("module:function of an agent that plays its tasks; external = agents that join (`astraflow agent`)")
    ] = ""
    roles: Annotated[dict[Name, Name], _doc("names that agents give to policies: role = policy")] = field(
        default_factory=dict
    )
    max_calls: Annotated[
        int, _doc("policy calls in an episode, sub-agents' too; beyond, it ends truncated with reward 0; 0 = any", ge=0)
    ] = 0
    max_tokens: Annotated[int, _doc("tokens sampled in an episode, likewise; 0 = any number", ge=0)] = 0


class SelectSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[sources.<name>.select]: which of its tasks are tried, and which are skipped this time."""

    kind: Annotated[
        str, _doc("accept-all, filter-solved, greso, curriculum, pools, levels, or module:Class of your own")
    ] = "accept-all"
    args: Annotated[dict[str, Any], _doc("keyword arguments of the selector")] = field(default_factory=dict)


class SourceSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[sources.<name>]: where training tasks come from."""

    env: Annotated[Name, _doc("the environment that the tasks are of: a name in [envs]")]
    group_size: Annotated[int, _doc("episodes per task, compared with each other", ge=1)] = 8
    extra: Annotated[int, _doc("redundant episodes per task: the slowest are cancelled", ge=0)] = 0
    weight: Annotated[float, _doc("share among sources", gt=0)] = 1.0
    first: Annotated[int, _doc("index of the first task", ge=0)] = 0
    size: Annotated[int, _doc("tasks per epoch; 0 = all that the environment has", ge=0)] = 0
    epochs: Annotated[int, _doc("passes over the tasks; 0 = unlimited", ge=0)] = 0
    shuffle: Annotated[bool, _doc("a new seeded order in every epoch; needs a finite size")] = False
    select: SelectSection = SelectSection()


class EvalSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[eval.<name>]: held-out tasks, answered before, during and after training."""

    env: Annotated[Name, _doc("the environment that the tasks are of: a name in [envs]")]
    size: Annotated[int, _doc("tasks", ge=1)] = 64
    first: Annotated[int, _doc("index of the first task; keep it away from the sources'", ge=0)] = 1_000_000
    every_steps: Annotated[int, _doc("0 = only before and after", ge=0)] = 10
    repeats: Annotated[
        int, _doc("answers per task: avg@repeats, and pass@k for k = 2, 4, … up to all of them", ge=1)
    ] = 1
    temperature: Annotated[float, _doc("0 is greedy", ge=0)] = 1.0
    top_p: Annotated[float, _doc("1 is off; 0 = each policy's own", ge=0, le=1)] = 0.0
    max_new_tokens: Annotated[int, _doc("tokens per completion, at most; 0 = each policy's own", ge=0)] = 0


class DataflowSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[dataflow]: metering, deadlines and snapshots."""

    task_deadline_s: Annotated[float, _doc("time allowed for an episode before it is issued again", gt=0)] = 600.0
    max_attempts: Annotated[int, _doc("attempts at a task before its member is given up", ge=1)] = 3
    min_group_size: Annotated[int, _doc("members with a valid reward that a group needs; 0 = all", ge=0)] = 2
    max_failed_groups: Annotated[int, _doc("groups in a row without a valid reward before the run stops", ge=1)] = 100
    order: Annotated[
        str, _doc("fifo; edf: groups that go stale first are trained first; or module:Class of your own")
    ] = "edf"
    meter: Annotated[
        Literal["any", "tightest"],
        _doc("a group is issued when any policy that it feeds has credit, or only when all of them have"),
    ] = "any"
    shares: Annotated[
        Literal["weight", "size"], _doc("what a source's share follows: its weight, or its weight times its size")
    ] = "weight"
    snapshot_every_s: Annotated[float, _doc("seconds between snapshots", gt=0)] = 5.0
    standbys: Annotated[
        int, _doc("more dataflow processes that `up` starts; one takes over when the first dies", ge=0)
    ] = 0


class BusSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[bus]: the NATS server and the bounds of its streams."""

    url: Annotated[str, _doc("an external server; empty = `up` starts its own")] = ""
    token_file: Annotated[str, _doc("file with the server's token")] = ""
    credentials_file: Annotated[str, _doc("NATS key (.nk) or .creds file, for every process of `up`")] = ""
    credentials_dir: Annotated[str, _doc("instead: a folder with <role>.nk, from `astraflow bus --secure`")] = ""
    ca_file: Annotated[str, _doc("who signed the server's certificate; set: nothing is sent without TLS")] = ""
    region: Annotated[Name, _doc("where this server is; part of stream names")] = "local"
    ack_wait_s: Annotated[float, _doc("a task is redelivered when it is not renewed for this long", gt=0)] = 30.0
    answer_s: Annotated[
        float, _doc("a publish that the server leaves unanswered for this long is sent again", gt=0)
    ] = 5.0
    member_ttl_s: Annotated[int, _doc("an actor that is silent for this long is gone", ge=1)] = 6
    lease_s: Annotated[float, _doc("a dataflow or trainer that is silent for this long can be replaced", ge=0.5)] = 6.0
    silence_s: Annotated[float, _doc("a generation that is silent for this long is continued elsewhere", gt=0)] = 15.0
    request_ttl_s: Annotated[float, _doc("a generation request waits at most this long for a replica", gt=0)] = 600.0
    max_tasks: Annotated[int, _doc("messages in TASKS per environment", ge=1)] = 100_000
    max_weights_bytes: Annotated[
        int, _doc("bytes in WEIGHTS per policy; 0 = what two fulls and their chains take", ge=0)
    ] = 0
    max_episodes_bytes: Annotated[int, _doc("bytes in EPISODES", ge=1)] = 8 << 30


class NodeSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[node]: how `up` uses this machine."""

    threads: Annotated[int, _doc("cores to use; 0 = all that this process may", ge=0)] = 0
    policy_threads: Annotated[int, _doc("per policy process; 0 = a share", ge=0)] = 0
    trainer_threads: Annotated[int, _doc("per trainer process; 0 = a share", ge=0)] = 0
    rollouts: Annotated[int, _doc("rollout processes", ge=0)] = 1
    episodes_per_rollout: Annotated[int, _doc("concurrent episodes in a rollout process", ge=1)] = 64
    eval_share: Annotated[
        Fraction, _doc("part of them that evaluation may have while training tasks wait; when none does, it has all")
    ] = 0.25
    grace_s: Annotated[float, _doc("time to drain before processes are killed", gt=0)] = 60.0
    preempt_file: Annotated[str, _doc("drain when this file appears: the machine is about to be taken away")] = ""
    preempt_command: Annotated[str, _doc("drain when this shell command succeeds, e.g. curl of a metadata address")] = (
        ""
    )
    preempt_every_s: Annotated[float, _doc("pause between two runs of preempt_command", gt=0)] = 5.0
    max_restarts: Annotated[int, _doc("restarts of one actor in ten minutes before the run fails", ge=0)] = 10


class RecordSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[record]: what the run folder keeps."""

    keep_episodes: Annotated[bool, _doc("keep every episode on the bus, not only what is still needed")] = False
    episode_text: Annotated[bool, _doc("write prompts and replies to episodes.jsonl")] = True


class RunConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole run file."""

    run: RunSection
    policies: dict[Name, PolicySection]
    envs: dict[Name, EnvSection]
    sources: dict[Name, SourceSection] = field(default_factory=dict)
    eval: dict[Name, EvalSection] = field(default_factory=dict)
    dataflow: DataflowSection = DataflowSection()
    bus: BusSection = BusSection()
    node: NodeSection = NodeSection()
    record: RecordSection = RecordSection()


def host_and_port(text: str) -> tuple[str, int]:
    """HOST:PORT, port 0 allowed. Raises ValueError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{text!r} is not like HOST:PORT")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def to_json(config: RunConfig) -> bytes:
    """The resolved config, as it is stored on the bus."""
    return msgspec.json.encode(config)


def from_json(data: bytes) -> RunConfig:
    """A config that `to_json` wrote."""
    return msgspec.json.decode(data, type=RunConfig)
