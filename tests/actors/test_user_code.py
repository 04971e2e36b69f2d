"""What users' code does to an episode: it raises, it hangs, its policies' replies are cut off. Always one record."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from astraflow.actors.rollout.call import Call, Completion
from astraflow.actors.rollout.play import reason_of
from astraflow.actors.rollout.stats import CUT_AMONG, CutReplies
from astraflow.bus import EmbeddedServer
from astraflow.config import NodeSection
from astraflow.envs import Outcome, PolicyHandle, agent
from astraflow.envs.agents import AgentEnv
from astraflow.envs.tiny_env import TinyEnv
from astraflow.envs.usercode import LOST
from astraflow.errors import BudgetError, BusError, EngineError, GraderError
from astraflow.messages import Episode, Event, Reason, Sampling, Task, Trajectory, Turn, array_of
from tests.actors.contexts import CONFIG, context
from tests.actors.test_rollout import PROMPT, Env, Three, episodes, pool_of, publish, raises, settled, task
from tests.envs.test_usercode import RAISED, stubborn
from tests.support import eventually

HERE = Path(__file__).name


async def episode_of(server: EmbeddedServer, folder: Path, env: Any, **fields: Any) -> Episode:
    """The record of one task."""
    async with context(server, folder, role="rollout") as ctx, pool_of(ctx, env):
        await publish(ctx, task(**fields))
        await eventually(lambda: settled(ctx))
        (episode,) = await episodes(ctx)
        return episode


@pytest.mark.parametrize("make", RAISED)
async def test_whatever_an_environment_raises_is_one_record_with_its_line(
    nats_server: EmbeddedServer, tmp_path: Path, make: Callable[[], BaseException]
) -> None:
    episode = await episode_of(nats_server, tmp_path, Env(raises(make())))
    assert episode.reason is Reason.ENV
    assert " line " in episode.error


class Hostile:
    """A number that ends the process of whoever looks at it."""

    def __float__(self) -> float:
        raise SystemExit(7)


@pytest.mark.parametrize(
    "made",
    [
        lambda: Outcome(rewards={"solver": Hostile()}),  # type: ignore[dict-item]
        lambda: Outcome(rewards={"solver": 1.0}, correct=Hostile()),  # type: ignore[arg-type]
        lambda: Outcome(rewards={"solver": 1.0}, parts={"a": Hostile()}),  # type: ignore[dict-item]
        lambda: Outcome(rewards=7),  # type: ignore[arg-type]
        lambda: Outcome(rewards={"solver": 1.0}, reason="fine"),  # type: ignore[arg-type]
    ],
)
async def test_an_outcome_that_is_none_is_one_record_too(
    nats_server: EmbeddedServer, tmp_path: Path, made: Callable[[], Outcome]
) -> None:
    assert (await episode_of(nats_server, tmp_path, Env(made))).reason is Reason.ENV


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (EngineError("down"), Reason.INFRA),
        (ExceptionGroup("calls", [EngineError("down"), BudgetError("spent")]), Reason.INFRA),
        (ExceptionGroup("calls", [ExceptionGroup("more", [BusError("gone")]), ValueError("x")]), Reason.INFRA),
        (ExceptionGroup("calls", [BudgetError("spent"), BudgetError("spent")]), Reason.TRUNCATED),
        (ExceptionGroup("calls", [GraderError("no judge")]), Reason.GRADER),
        (GraderError("no judge"), Reason.GRADER),
        (ExceptionGroup("calls", [BudgetError("spent"), ValueError("x")]), Reason.ENV),
        (BaseExceptionGroup("calls", [SystemExit(1), BudgetError("spent")]), Reason.ENV),
    ],
    ids=str,
)
def test_what_side_by_side_calls_raised_has_the_reason_of_its_parts(error: BaseException, reason: Reason) -> None:
    assert reason_of(error)[0] is reason


async def test_code_that_swallows_its_cancel_loses_its_slot_at_the_deadline_and_the_process_gives_way(
    nats_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("astraflow.envs.usercode.GRACE_S", 0.05)
    before = LOST.count
    config = msgspec.structs.replace(CONFIG, node=NodeSection(episodes_per_rollout=8))
    with stubborn() as (work, leave):

        class Stubborn(Env):
            async def run(self, task: Task, policies: Mapping[str, PolicyHandle]) -> Outcome:
                self.played += 1
                return await (work() if task.deadline_s < 1 else super().run(task, policies))

        env = Stubborn(lambda: Outcome(rewards={"solver": 1.0}))
        async with context(nats_server, tmp_path, role="rollout", config=config) as ctx, pool_of(ctx, env):
            await publish(ctx, task(0, deadline_s=0.1), task(1))
            await eventually(lambda: settled(ctx))
            assert not ctx.stopping.is_set(), "one of eight slots is lost, two are too many"
            await publish(ctx, task(2, deadline_s=0.1), task(3))
            await eventually(lambda: ctx.stopping.is_set())
            assert ctx.stop_reason == "replaced"
            await eventually(lambda: settled(ctx))
            found = {each.task_id: each for each in await episodes(ctx)}
            assert [found[task(n).id].reason for n in range(4)] == [Reason.TIMEOUT, Reason.OK] * 2
            assert "test_usercode.py line " in found[task(0).id].error
            entries = [entry.message async for entry in ctx.bus.logs.read(ctx.bus.topology.events, follow=False)]
            (event,) = [each for each in entries if isinstance(each, Event) and each.name == "user-code-hangs"]
            assert "2 calls of user code never ended, the newest in test_usercode.py line " in event.text
        leave.set()
    await eventually(lambda: LOST.count == before)


class Cut(Three):
    """Cuts off the replies with these numbers, counted over all policies."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers
        self.calls = 0

    async def generate(self, call: Call) -> Completion:
        completion = await super().generate(call)
        self.calls += 1
        if self.calls - 1 not in self.numbers:
            return completion
        return Completion(**{**vars(completion), "finish_reason": "length"})


async def twice(task: Any, policies: Mapping[str, PolicyHandle]) -> float:
    """Two replies of one handle, and two of a spawned one; graded as the test says."""
    for handle in (policies["solver"], policies["solver"].spawn()):
        for _ in range(2):
            await handle.generate(PROMPT)
    await task.grade(task.payload["says"])
    return 0.5


SUM = {"index": 0, "question": "7+5=", "answer": "12"}


@pytest.mark.parametrize(
    ("cut", "says", "reason"),
    [((), "1", Reason.OK), *(((n,), "1", Reason.TRUNCATED) for n in range(4)), ((0, 3), "12", Reason.OK)],
)
async def test_any_reply_of_an_agent_that_is_cut_off_makes_it_truncated_unless_it_is_right(
    nats_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: Any, says: str, reason: Reason
) -> None:
    monkeypatch.setattr("tests.actors.test_rollout.Three", lambda: Cut(*cut))
    env = AgentEnv(TinyEnv(task="add"), agent(env="game")(twice))
    episode = await episode_of(nats_server, tmp_path, env, payload={**SUM, "says": says})
    assert (episode.reason, episode.error) == (reason, "")


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (Outcome(rewards={"solver": 0.0}), Reason.TRUNCATED),
        (Outcome(rewards={"solver": 0.0}, reason=Reason.POLICY), Reason.TRUNCATED),
        (Outcome(rewards={"solver": 0.9}, correct=0.9), Reason.TRUNCATED),
        (Outcome(rewards={"solver": 1.0}, correct=1.0), Reason.OK),
        (Outcome(rewards={}), Reason.OK),  # nobody is rewarded: nothing is trained on what was cut off
        (Outcome(rewards={}, reason=Reason.GRADER), Reason.GRADER),
    ],
)
async def test_a_custom_environments_cut_off_reply_is_truncated(
    nats_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: Outcome, reason: Reason
) -> None:
    monkeypatch.setattr("tests.actors.test_rollout.Three", lambda: Cut(0))
    assert (await episode_of(nats_server, tmp_path, Env(lambda: outcome))).reason is reason


def cut_episode(*finish_reasons: str, policy: str = "solver") -> Episode:
    nothing = array_of([], "i4")
    turns = tuple(
        Turn(context_tokens=nothing, completion_tokens=nothing, logprobs=nothing, versions=(), finish_reason=reason)
        for reason in finish_reasons
    )
    return Episode(
        task_id="t",
        attempt=0,
        group_id="g",
        group_size=1,
        member=0,
        source="s",
        env="game",
        reason=Reason.OK,
        trajectories=(Trajectory(policy=policy, turns=turns, reward=0.0),),
    )


def test_a_word_is_said_once_when_more_than_half_of_a_policys_replies_are_cut_off() -> None:
    cut = CutReplies()
    half = [*(["length"] * (CUT_AMONG // 2)), *(["stop"] * (CUT_AMONG // 2))]
    assert cut.add(cut_episode(*half)) == []
    assert cut.add(cut_episode(*half, policy="verifier")) == []
    assert cut.add(cut_episode(*["length"] * (CUT_AMONG // 2))) == []
    (sentence,) = cut.add(cut_episode("length"))
    assert f"17 of the newest {CUT_AMONG} replies of policy solver in environment game were cut off" in sentence
    assert cut.add(cut_episode(*["length"] * 99)) == []


async def test_what_outlives_its_episode_is_not_answered_any_more(nats_server: EmbeddedServer, tmp_path: Path) -> None:
    kept: list[PolicyHandle] = []

    class Keeps(Env):
        async def run(self, task: Task, policies: Mapping[str, PolicyHandle]) -> Outcome:
            kept.append(policies["solver"])
            return await super().run(task, policies)

    await episode_of(nats_server, tmp_path, Keeps(lambda: Outcome(rewards={"solver": 1.0})))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await kept[0].generate(PROMPT)


async def test_a_prompt_that_nobody_can_serve_is_the_environments_fault_and_not_tried_again(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    class Cold(Env):
        async def run(self, task: Task, policies: Mapping[str, PolicyHandle]) -> Outcome:
            await policies["solver"].generate(PROMPT, sampling=Sampling(temperature=-1.0))
            raise AssertionError("it was refused")

    episode = await episode_of(nats_server, tmp_path, Cold(lambda: None))
    assert (episode.reason, episode.error) == (
        Reason.ENV,
        "policy solver can't be asked so: temperature is -1.0, expected 0 or more",
    )
