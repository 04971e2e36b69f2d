"""What is played and in which order: [envs], [sources], [eval], [dataflow]."""

from typing import Annotated, Any, Literal

from msgspec import Struct, field

from astraflow.config.kinds import Name, doc

EXTERNAL = "external"
"""`agent` of an environment that only agents which join play."""
SESSIONS = "sessions"
"""`agent` of an environment that clients of the gateway play."""


class EnvSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[envs.<name>]: an environment."""

    kind: Annotated[str, doc("reasoning-gym, math, code, search, tiny, toy, or module:Class of your own")]
    args: Annotated[dict[str, Any], doc("keyword arguments of the environment")] = field(default_factory=dict)
    agent: Annotated[
        str,
        doc(
            "module:function of an agent that plays its tasks; external = agents that join (`astraflow agent`); "
            "sessions = clients that take sessions over HTTP"
        ),
    ] = ""
    command: Annotated[
        str, doc("program that plays its tasks, started for each episode with OPENAI_BASE_URL and OPENAI_API_KEY")
    ] = ""
    roles: Annotated[dict[Name, Name], doc("names that agents give to policies: role = policy")] = field(
        default_factory=dict
    )
    max_calls: Annotated[
        int, doc("policy calls in an episode, sub-agents' too; beyond, it ends truncated with reward 0; 0 = any", ge=0)
    ] = 0
    max_tokens: Annotated[int, doc("tokens sampled in an episode, likewise; 0 = any number", ge=0)] = 0
    grade_deadline_s: Annotated[
        float,
        doc("time for one grade(), and for one prompt(); beyond, reason grader or env; 0 = the class's own", ge=0),
    ] = 0.0
    part_weights: Annotated[
        dict[str, float],
        doc("the reward is the sum of grade()'s parts, each times its weight; empty = the class's own"),
    ] = field(default_factory=dict)

    @property
    def by_http(self) -> bool:
        """Whether its tasks are played through the gateway."""
        return self.agent == SESSIONS or bool(self.command)


class SelectSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[sources.<name>.select]: which of its tasks are tried, and which are skipped this time."""

    kind: Annotated[
        str, doc("accept-all, filter-solved, greso, curriculum, pools, levels, or module:Class of your own")
    ] = "accept-all"
    args: Annotated[dict[str, Any], doc("keyword arguments of the selector")] = field(default_factory=dict)


class SourceSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[sources.<name>]: where training tasks come from."""

    env: Annotated[Name, doc("the environment that the tasks are of: a name in [envs]")]
    group_size: Annotated[int, doc("episodes per task, compared with each other", ge=1)] = 8
    extra: Annotated[int, doc("redundant episodes per task: the slowest are cancelled", ge=0)] = 0
    weight: Annotated[float, doc("share among sources", gt=0)] = 1.0
    first: Annotated[int, doc("index of the first task", ge=0)] = 0
    size: Annotated[int, doc("tasks per epoch; 0 = all that the environment has", ge=0)] = 0
    epochs: Annotated[int, doc("passes over the tasks; 0 = unlimited", ge=0)] = 0
    shuffle: Annotated[bool, doc("a new seeded order in every epoch; needs a finite size")] = False
    select: SelectSection = SelectSection()


class EvalSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[eval.<name>]: held-out tasks, answered before, during and after training."""

    env: Annotated[Name, doc("the environment that the tasks are of: a name in [envs]")]
    size: Annotated[int, doc("tasks", ge=1)] = 64
    first: Annotated[int, doc("index of the first task; keep it away from the sources'", ge=0)] = 1_000_000
    every_steps: Annotated[int, doc("0 = only before and after", ge=0)] = 10
    repeats: Annotated[
        int, doc("answers per task: avg@repeats, and pass@k for k = 2, 4, … up to all of them", ge=1)
    ] = 1
    temperature: Annotated[float, doc("0 is greedy", ge=0)] = 1.0
    top_p: Annotated[float, doc("1 is off; 0 = each policy's own", ge=0, le=1)] = 0.0
    max_new_tokens: Annotated[int, doc("tokens per completion, at most; 0 = each policy's own", ge=0)] = 0


class DataflowSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[dataflow]: metering, deadlines and snapshots."""

    task_deadline_s: Annotated[float, doc("time allowed for an episode before it is issued again", gt=0)] = 600.0
    max_attempts: Annotated[int, doc("attempts at a task before its member is given up", ge=1)] = 3
    min_group_size: Annotated[int, doc("members with a valid reward that a group needs; 0 = all", ge=0)] = 2
    max_failed_groups: Annotated[int, doc("groups in a row without a valid reward before the run stops", ge=1)] = 100
    order: Annotated[
        str, doc("fifo; edf: groups that go stale first are trained first; or module:Class of your own")
    ] = "edf"
    meter: Annotated[
        Literal["any", "tightest"],
        doc("a group is issued when any policy that it feeds has credit, or only when all of them have"),
    ] = "any"
    shares: Annotated[
        Literal["weight", "size"], doc("what a source's share follows: its weight, or its weight times its size")
    ] = "weight"
    snapshot_every_s: Annotated[float, doc("seconds between snapshots", gt=0)] = 5.0
    standbys: Annotated[
        int, doc("more dataflow processes that `up` starts; one takes over when the first dies", ge=0)
    ] = 0
