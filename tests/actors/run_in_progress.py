"""A run in the middle, as messages: shared by the tests of status, live view and summary."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from astraflow.bus import Bus, EmbeddedServer, NatsBus, topology_of, wiring
from astraflow.config import (
    EnvSection,
    PolicySection,
    RecordSection,
    RunConfig,
    RunSection,
    SourceSection,
    TrainerSection,
    to_json,
)
from astraflow.messages import (
    Episode,
    Member,
    MemberState,
    Metrics,
    Reason,
    RunRecord,
    Trajectory,
    Turn,
    VersionSpan,
    array_of,
)
from astraflow.messages.metric_names import (
    EVAL,
    EVAL_CORRECT,
    EVAL_REWARD,
    EVAL_SIZE,
    LABEL_SET,
    TRAIN,
    TRAIN_REWARD_MEAN,
    TRAIN_SKIPPED,
    TRAIN_STALENESS_MAX,
    TRAIN_STALENESS_MEAN,
    TRAIN_TOKENS,
)
from astraflow.view.run_view import RunView

CREATED_AT = 1_700_000_000.0

CONFIG = RunConfig(
    run=RunSection(name="demo"),
    policies={
        "solver": PolicySection(model="toy", trainer=TrainerSection(steps=30)),
        "judge": PolicySection(model="toy"),
    },
    envs={"sums": EnvSection(kind="toy")},
    sources={"train": SourceSection(env="sums")},
    record=RecordSection(curve=False),
)
RECORD = RunRecord(name="demo", incarnation="inc-1", config_json=to_json(CONFIG), created_at=CREATED_AT)


def member(actor: str, role: str, **fields: object) -> Member:
    """A ready member, changed by `fields`."""
    defaults: dict[str, object] = {
        "actor": actor,
        "role": role,
        "node": "n",
        "incarnation": f"i-{actor}",
        "pid": 7,
        "state": MemberState.READY,
        "since": CREATED_AT,
    }
    return Member(**(defaults | fields))  # type: ignore[arg-type]


def everybody() -> list[Member]:
    """One ready member of every role and policy."""
    return [
        member("dataflow-n-0", "dataflow"),
        member("rollout-n-0", "rollout"),
        member("trainer-n-0", "trainer", policy="solver"),
        member("policy-n-0", "policy", policy="solver"),
        member("policy-n-1", "policy", policy="judge"),
    ]


def view_of(*members: Member) -> RunView:
    """A view that has seen the record and these members."""
    view = RunView()
    view.apply("run", RECORD)
    for one in members:
        view.apply(f"member.{one.actor}", one)
    return view


def train(step: int, *, reward: float = 0.5, policy: str = "solver", lineage: int = 1, skipped: float = 0.0) -> Metrics:
    """The metrics of one optimizer step of 100 tokens, ten seconds after the previous one."""
    return Metrics(
        kind=TRAIN,
        at=CREATED_AT + 10 * step,
        policy=policy,
        step=step,
        version=step,
        batch=step,
        lineage=lineage,
        values={
            TRAIN_REWARD_MEAN: reward,
            TRAIN_TOKENS: 100.0,
            TRAIN_STALENESS_MEAN: 0.5,
            TRAIN_STALENESS_MAX: 1.0,
            TRAIN_SKIPPED: skipped,
        },
    )


def evaluation(step: int, correct: float, *, set_name: str = "held-out") -> Metrics:
    """64 answers; the reward is correct + 0.1."""
    return Metrics(
        kind=EVAL,
        at=CREATED_AT + 10 * step + 1,
        policy="solver",
        step=step,
        version=step,
        values={EVAL_CORRECT: correct, EVAL_REWARD: correct + 0.1, EVAL_SIZE: 64.0},
        labels={LABEL_SET: set_name},
    )


def episode(number: int, *, reason: Reason = Reason.OK, reward: float = 1.0, version: int = 0) -> Episode:
    """A training episode of three sampled tokens; without a trajectory if its reason carries no reward."""
    turn = Turn(
        context_tokens=array_of([1, 2], "i4"),
        completion_tokens=array_of([3, 4, 0], "i4"),
        logprobs=array_of([-0.1, -0.2, -0.3], "f4"),
        versions=(VersionSpan(version=version, start=0, end=3),),
        finish_reason="stop",
    )
    failed = reason not in (Reason.OK, Reason.TRUNCATED, Reason.POLICY)
    return Episode(
        task_id=f"inc-1/train/0/{number}/0",
        attempt=0,
        group_id=f"inc-1/train/0/{number}",
        group_size=1,
        member=0,
        source="train",
        env="sums",
        reason=reason,
        trajectories=() if failed else (Trajectory(policy="solver", turns=(turn,), reward=reward, text=f"= {number}"),),
        correct=None if failed else reward,
        error="the environment raised ValueError: boom" if failed else "",
        prompt=f"What is {number} + 0?",
        answer=str(number),
        started_at=CREATED_AT,
        ended_at=CREATED_AT + 1,
    )


@asynccontextmanager
async def running_bus(folder: Path) -> AsyncIterator[tuple[EmbeddedServer, Bus]]:
    """A server with the run's record on it."""
    server = EmbeddedServer(folder / "nats")
    await server.start()
    try:
        async with NatsBus.connect(server.options, topology_of(CONFIG), producer="test") as bus:
            await bus.ensure()
            await bus.kv.put(wiring.RUN.key(), RECORD)
            yield server, bus
    finally:
        await server.stop()
