"""Status: its sentences from hand-made views, and the whole of it from a real server."""

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from astraflow.bus import NatsBus, topology_of, wiring
from astraflow.errors import ConfigError
from astraflow.messages import Event, Head, Ledger, Member, MemberState, Progress, Region, RunRecord
from astraflow.messages.metric_names import DATAFLOW_BUFFERED_GROUPS, POLICY_TOKENS_PER_S, POLICY_VERSION
from astraflow.view.run_view import RunView, WaitsFor
from astraflow.view.status import read_status, status_of, to_json
from astraflow.view.status_text import COLUMNS, LINES, render
from tests.actors.run_in_progress import (
    CONFIG,
    CREATED_AT,
    RECORD,
    evaluation,
    everybody,
    member,
    running_bus,
    train,
    view_of,
)
from tests.support import LIMIT_S

AT = CREATED_AT + 100


def without(role: str, policy: str = "") -> list[Member]:
    return [m for m in everybody() if m.role != role or (policy and m.policy != policy)]


def test_a_run_with_everybody_ready_has_no_problems() -> None:
    assert view_of(*everybody()).problems() == []


def test_all_of_a_status_says_what_a_replica_is_made_of() -> None:
    about = "SGLang 0.5.23 launched, weights by delta"
    status = status_of(view_of(member("policy-n-0", "policy", policy="solver", about=about)), at=AT)
    assert about in render(status, everything=True)
    assert "SGLang" not in render(status)


def test_missing_actors_are_named_with_what_waits_for_them() -> None:
    view = view_of()
    view.queues = {"task.sums": 12, "task.sums.eval": 0, "gen.solver": 3}
    assert view.problems() == [
        "no dataflow: no tasks are issued",
        "0 rollout nodes: tasks wait (sums 12)",
        "no policy replica for solver: 3 requests wait",
        "no trainer for solver: 0 of 30 steps are done",
        "no policy replica for judge",
    ]


def test_a_frozen_policy_and_a_finished_trainer_miss_no_trainer() -> None:
    view = view_of(*without("trainer"))
    assert view.problems() == ["no trainer for solver: 0 of 30 steps are done"]
    view.apply("progress.solver", Progress(policy="solver", consumed=30, step=30, version=30, epoch=1, finished=True))
    assert view.problems() == []


def test_an_actor_on_its_way_is_said_or_left_out_as_asked() -> None:
    coming = member("policy-n-0", "policy", policy="solver", state=MemberState.CATCHING_UP)
    view = view_of(*without("policy", "solver"), coming)
    assert view.problems() == ["no policy replica for solver (policy-n-0 is catching up)"]
    assert view.problems(with_coming=False) == []


def test_an_expired_member_is_gone_until_it_comes_back() -> None:
    view = view_of(*everybody())
    view.apply("member.rollout-n-0", None)
    assert view.problems() == ["0 rollout nodes (rollout-n-0 is gone)"]
    assert status_of(view, at=AT).gone == ("rollout-n-0",)
    assert "\n  gone: rollout-n-0" in render(status_of(view, at=AT))
    assert "rollout-n-0              gone" in render(status_of(view, at=AT), everything=True)
    view.apply("member.rollout-n-0", member("rollout-n-0", "rollout", incarnation="second"))
    assert (view.problems(), view.gone) == ([], {})


def test_an_actor_that_spoke_lately_and_has_no_record_is_gone() -> None:
    view = view_of(*everybody())
    for actor in ("rollout-n-0", "rollout-m-0", "up", "trainer-n-0-beat"):
        view.heard_of(actor)
    assert set(view.gone) == {"rollout-m-0"}


def test_a_goodbye_is_gone_too() -> None:
    view = view_of(*everybody())
    view.apply("member.dataflow-n-0", member("dataflow-n-0", "dataflow", state=MemberState.GONE))
    assert view.problems() == ["no dataflow: no tasks are issued (dataflow-n-0 is gone)"]


def test_environments_that_rollouts_cant_run_are_named() -> None:
    lacking = member("rollout-n-0", "rollout", unserved={"sums": "no module 'sums'"})
    view = view_of(*without("rollout"), lacking)
    view.queues = {"task.sums": 12}
    complaint = "rollout-n-0 isn't given sums: no module 'sums'"
    assert view.problems() == ["no rollout can run environment sums: 12 tasks wait", complaint]
    view.apply("member.rollout-n-1", member("rollout-n-1", "rollout"))
    assert view.problems() == [complaint]


def test_a_trainer_that_waits_is_told_how_much_of_its_batch_is_there() -> None:
    waiting = member("trainer-n-0", "trainer", policy="solver", waits_for="batch 12", waits_since=AT)
    flow = member("dataflow-n-0", "dataflow", gauges={f"{DATAFLOW_BUFFERED_GROUPS}.solver": 3.0})
    view = view_of(*without("trainer"), waiting, flow)
    assert view.waits() == [WaitsFor(who="trainer solver", waits_for="batch 12: 3 of 8 groups", since=AT)]


def test_a_stuck_actor_is_shown_with_its_frame_and_an_error_with_its_text() -> None:
    stuck = member("rollout-n-1", "rollout", stuck_frame="grade.py:7 verify", loop_lag_s=3.2)
    ill = member("rollout-n-2", "rollout", last_error="EnvError: no dataset")
    view = view_of(*everybody(), stuck, ill)
    assert view.problems() == [
        "rollout-n-1 is stuck since 3.2 s in grade.py:7 verify",
        "rollout-n-2: EnvError: no dataset",
    ]
    whole, brief = (render(status_of(view, at=AT), everything=each) for each in (True, False))
    assert ", stuck in grade.py:7 verify" in whole
    assert brief.splitlines()[1] == "  !  rollout-n-1 is stuck since 3.2 s in grade.py:7 verify"


def test_who_waits_for_whom_is_one_row_per_role_and_sentence() -> None:
    trainer = member(
        "trainer-n-0", "trainer", policy="solver", waits_for="batch 12: 3 of 8 groups", waits_since=CREATED_AT + 90
    )
    pools = [member(f"rollout-n-{k}", "rollout", waits_for="tasks", waits_since=CREATED_AT + 60 + k) for k in range(3)]
    view = view_of(*without("trainer"), trainer, *pools, member("rollout-n-3", "rollout"))
    assert view.waits() == [
        WaitsFor(who="rollout (3 of 4)", waits_for="tasks", since=CREATED_AT + 60),
        WaitsFor(who="trainer solver", waits_for="batch 12: 3 of 8 groups", since=CREATED_AT + 90),
    ]
    assert "trainer solver waits for batch 12: 3 of 8 groups (10 s)" in render(status_of(view, at=AT))


def test_a_finished_run_has_no_problems_though_everybody_is_gone() -> None:
    view = view_of()
    assert view.record is not None
    view.apply(
        "run",
        RunRecord(
            **{f: getattr(view.record, f) for f in ("name", "incarnation", "config_json")},
            created_at=CREATED_AT,
            stop_requested="finished",
        ),
    )
    assert view.problems() == []


UNTRAINED = "solver: group sums/0/7 isn't trained: zero-advantage (8 of 8 members valid, rewards 0, 0)"


def full_view() -> RunView:
    replica = member("policy-n-0", "policy", policy="solver", gauges={POLICY_TOKENS_PER_S: 800.4, POLICY_VERSION: 11.0})
    view = view_of(*without("policy", "solver"), replica)
    view.apply("head.solver", _head(12))
    view.apply("progress.solver", Progress(policy="solver", consumed=13, step=12, version=12, epoch=1))
    view.apply("ledger.solver", Ledger(policy="solver", counts={"issued": 90, "infra": 2}, notes=(UNTRAINED,)))
    view.apply("lease.x", None)
    for metrics in (evaluation(0, 0.1), train(11), train(12, reward=0.75), evaluation(10, 0.5)):
        view.history.add(metrics)
    view.events.append(Event(level="error", name="disk-full", text="no room", actor="recorder-n-0", at=AT))
    return view


def _head(version: int) -> Head:
    return Head(policy="solver", version=version, step=version, epoch=1, manifest_sequence=1, full_manifest_sequence=1)


def test_status_json_has_stable_keys() -> None:
    plain = json.loads(json.dumps(to_json(status_of(full_view(), at=AT))))
    assert set(plain) == {
        "run",
        "incarnation",
        "created_at",
        "at",
        "stop_requested",
        "members",
        "gone",
        "policies",
        "queues",
        "waits",
        "problems",
        "events",
    }
    assert set(plain["policies"]) == set(CONFIG.policies)
    solver = plain["policies"]["solver"]
    assert set(solver) == {
        "trainable",
        "step",
        "steps_planned",
        "consumed",
        "version",
        "finished",
        "replicas",
        "serving",
        "tokens_per_s",
        "reward",
        "staleness_mean",
        "staleness_max",
        "eval",
        "ledger",
        "untrained",
        "weights",
        "failed",
        "left_s",
        "untrained_share",
    }
    assert (solver["step"], solver["consumed"], solver["version"], solver["serving"]) == (12, 13, 12, [11, 11])
    assert (solver["reward"], solver["tokens_per_s"], solver["ledger"]) == (0.75, 800.4, {"issued": 90, "infra": 2})
    assert [point["correct"] for point in solver["eval"]["held-out"]] == [0.1, 0.5]
    assert plain["events"][0]["text"] == "no room"


def crowded_view(policies: int) -> RunView:
    """Nothing is wrong, and there is much to tell."""
    view = full_view()
    assert view.config is not None
    view.config = msgspec.structs.replace(
        view.config, policies={f"p-{k}": view.config.policies["solver"] for k in range(policies)}
    )
    for k in range(policies):
        name = f"p-{k}"
        notes = tuple(f"{name}: group sums/0/{n} isn't trained: zero-advantage (8 of 8 members)" for n in range(10))
        view.apply(
            f"ledger.{name}", Ledger(policy=name, counts={f"reason-{n}": 10_000 for n in range(20)}, notes=notes)
        )
        view.apply(f"member.policy-{name}-0", member(f"policy-{name}-0", "policy", policy=name))
        view.apply(f"member.trainer-{name}-0", member(f"trainer-{name}-0", "trainer", policy=name, waits_for="batch 2"))
    for k in range(40):
        view.apply(f"member.rollout-n-{k}", member(f"rollout-n-{k}", "rollout", waits_for=f"tasks of {k}"))
        view.events.append(Event(level="warning" if k % 2 else "info", name="x", text="so " * 80, actor="a", at=AT))
    return view


@pytest.mark.parametrize("policies", [1, 3, 4, 16])
def test_a_healthy_run_fits_a_terminal_and_all_shows_the_rest(policies: int) -> None:
    status = status_of(crowded_view(policies), at=AT)
    assert status.problems == ()
    lines = render(status).splitlines()
    assert len(lines) <= LINES, "\n".join(lines)
    assert max(map(len, lines)) <= COLUMNS
    whole = render(status, everything=True)
    assert all(member.actor in whole for member in status.members)
    assert all(note.partition(": ")[2] in whole for policy in status.policies.values() for note in policy.untrained)


def test_what_is_left_and_what_was_not_trained_are_told_as_far_as_they_are_known() -> None:
    view = view_of(*everybody())
    view.apply("progress.solver", Progress(policy="solver", consumed=3, step=3, version=3, epoch=1))
    view.apply("ledger.solver", Ledger(policy="solver", counts={"issued": 20, "open": 6, "buffered": 4, "emitted": 8}))
    view.history.add(train(1))
    one_step = status_of(view, at=AT).policies["solver"]
    assert (one_step.left_s, one_step.untrained_share) == (None, pytest.approx(0.2))
    for step in (2, 3):
        view.history.add(train(step))
    assert status_of(view, at=AT).policies["solver"].left_s == pytest.approx(270)
    assert "20% not trained · 4 min 30 s left" in render(status_of(view, at=AT))
    view.history.add(train(2, lineage=2))  # a resumed trainer's only step says nothing yet
    assert status_of(view, at=AT).policies["solver"].left_s is None


def test_one_evaluation_is_no_change() -> None:
    view = view_of(*everybody())
    view.history.add(evaluation(0, 0.44))
    text = render(status_of(view, at=AT))
    assert "held-out: correct 0.44 (step 0)" in text
    assert "→" not in text


def test_rendered_status_says_what_a_person_asks() -> None:
    text = render(status_of(full_view(), at=AT))
    assert "\n  group sums/0/7 isn't trained: zero-advantage (8 of 8 members valid, rewards 0, 0)\n" in text
    for part in (
        "run demo · running · 1 min 40 s",
        "solver: step 12 of 30 · version 12 · 1 replica serving 11",
        "800 tokens/s",
        "reward 0.75",
        "held-out: correct 0.10 → 0.50 (step 0 → 10)",
        "issued 90, infra 2",
        "recorder-n-0: no room",
        "judge: frozen",
    ):
        assert part in text, text


async def test_status_reads_a_whole_run_from_the_bus(tmp_path: Path) -> None:
    async with running_bus(tmp_path) as (_, bus):
        for one in everybody():
            await bus.kv.put(wiring.MEMBER.key(one.actor), one)
        await bus.kv.put(wiring.HEAD.key("solver"), _head(2))
        await bus.kv.put(
            wiring.PROGRESS.key("solver"), Progress(policy="solver", consumed=2, step=2, version=2, epoch=1)
        )
        await bus.kv.put(wiring.LEDGER.key("solver"), Ledger(policy="solver", counts={"issued": 16, "emitted": 16}))
        for metrics in (evaluation(0, 0.25), train(1), train(2, reward=0.75)):
            await bus.metrics(metrics)
        await bus.event("warning", "slow", "the disk is slow")
        status = await read_status(bus)
    solver = status.policies["solver"]
    assert (solver.step, solver.version, solver.reward, solver.ledger["issued"]) == (2, 2, 0.75, 16)
    assert solver.eval["held-out"][0].correct == 0.25
    assert [m.actor for m in status.members] == sorted(m.actor for m in everybody())
    assert status.queues == {"task.sums": 0, "task.sums.eval": 0, "gen.solver": 0, "gen.judge": 0}
    assert (status.problems, status.gone) == ((), ())
    assert [(e.level, e.text) for e in status.events] == [("warning", "the disk is slow")]


async def test_a_member_whose_record_expired_is_gone(tmp_path: Path) -> None:
    async with running_bus(tmp_path) as (server, bus), asyncio.timeout(LIMIT_S):
        for one in everybody():
            await bus.kv.put(wiring.MEMBER.key(one.actor), one, ttl_s=1 if one.role == "rollout" else None)
        async with NatsBus.connect(server.options, topology_of(CONFIG), producer="rollout-n-0") as rollout:
            await rollout.metrics(train(1))
        assert (await read_status(bus)).problems == ()
        async for update in bus.kv.watch(wiring.MEMBER.key("rollout-n-0")):
            if update.key and update.message is None:
                break
        status = await read_status(bus)
        assert (status.gone, status.problems) == (("rollout-n-0",), ("0 rollout nodes",))


async def test_status_of_a_run_that_is_not_there_says_so(tmp_path: Path) -> None:
    async with running_bus(tmp_path) as (_, bus):
        await bus.kv.delete(wiring.RUN.key())
        with pytest.raises(ConfigError, match="no run 'demo' on this server"):
            await read_status(bus)
        await bus.kv.put(wiring.RUN.key(), RECORD)
        assert (await read_status(bus)).run == "demo"


def test_times_of_a_record_are_told_by_the_readers_clock() -> None:
    hours = 7200.0  # that the actor's clock is ahead
    ahead = member(
        "trainer-n-0",
        "trainer",
        policy="solver",
        since=AT - 60 + hours,
        waits_for="batch 1",
        waits_since=AT - 9 + hours,
        blocked="the disk is full",
        blocked_since=AT - 5 + hours,
        state_s=50.0,
        waits_s=4.0,
        blocked_s=3.0,
    )
    view = view_of()
    view.apply("member.trainer-n-0", ahead, written_at=AT - 1)
    view.apply("region.far", Region(region="far", seen_at=AT - hours, members=("a",)), written_at=AT - 2)
    known = view.members["trainer-n-0"]
    assert (known.since, known.waits_since, known.blocked_since) == (AT - 51, AT - 5, AT - 4)
    assert [wait.since for wait in view.waits()] == [AT - 5]
    assert view.regions["far"].seen_at == AT - 2


def test_a_record_that_tells_no_ages_keeps_its_own_times() -> None:
    view = view_of()
    view.apply("member.x", member("x", "rollout", since=AT, state_s=float("nan"), waits_since=1e300), written_at=AT - 1)
    assert (view.members["x"].since, view.members["x"].waits_since) == (AT, 0.0)


def test_what_dataflow_finds_wrong_with_the_run_is_a_problem_line() -> None:
    told = ("solver learns nothing: its last 64 groups were not trained", "the selector of source train refused 1,000")
    members = [*without("dataflow"), member("dataflow-n-0", "dataflow", problems=told)]
    assert view_of(*members).problems() == list(told)
