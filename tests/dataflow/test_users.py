"""What users want of dataflow: submissions go first and once, a pause stops issuing, orders outlive a restart."""

import pytest

from astraflow.config import EvalSection, RunConfig, SelectSection, SourceSection, TrainerSection
from astraflow.dataflow.core import DataflowCore
from astraflow.dataflow.submissions import MOST_REMEMBERED, Submissions, index_of
from astraflow.messages import Control, ControlKind, Submission, Task
from astraflow.messages.ids import GroupKey, group_id
from tests.dataflow.dataflow_world import INCARNATION, World, config_of

WANTED = Submission(env="math", payload={"question": "mine"}, group_size=3)
SIZES: dict[str, int | None] = {"math": None, "code": None}


def config(**fields: object) -> RunConfig:
    section = TrainerSection(steps=4, batch_groups=2)
    select = SelectSection(kind="greso", args={})
    source = SourceSection(env="math", group_size=2, select=select)
    return config_of(trainers={"solver": section}, sources={"train": source}, **fields)


def decide(core: DataflowCore) -> list[Task]:
    """Apply what is planned; the tasks of it."""
    tasks = []
    for decision in core.plan(0.0):
        core.apply_decision(decision)
        tasks += core.tasks_of(decision, lambda env, index: {"index": index})
    return tasks


def test_what_is_submitted_goes_first_in_a_group_of_its_own_and_once() -> None:
    core = World(config()).core
    assert core.users.on_submission(WANTED, 7, "mine").ok
    assert core.users.on_submission(WANTED, 7, "mine").ok, "read again"
    tasks = decide(core)
    first = [task for task in tasks if task.source == "submitted-math"]
    assert tasks[:3] == first
    assert [task.payload for task in first] == [{"question": "mine"}] * 3
    assert {task.group_id for task in first} == {group_id(INCARNATION, GroupKey("submitted-math", 0, index_of("mine")))}
    assert {task.source for task in tasks[3:]} == {"train"}, "the sources have the rest of the credit"


def submitted(core: DataflowCore) -> list[str]:
    """The groups that users submitted and that would be issued now."""
    return [decision.group_id for decision in core.plan(0.0) if decision.source == "submitted-math"]


def test_a_message_that_was_stored_eight_times_after_a_long_cut_is_one_submission() -> None:
    few = SourceSection(env="math", group_size=2, size=1, epochs=1)  # so that there is credit left
    section = TrainerSection(steps=9, batch_groups=8)
    own = config_of(trainers={"solver": section}, sources={"train": few})
    world = World(own)
    for sequence in range(1, 9):
        assert world.core.users.on_submission(WANTED, sequence, "mine").ok
        world.plan()
    mine = [task for task in world.queue if task.source == "submitted-math"]
    assert len(mine) == 3, "one group of three"
    for task in mine:
        world.answer(task, {"solver": float(task.member)})
    while world.read < len(world.episodes):
        world.read_one()
    restored = DataflowCore.restore(own, world.core.snapshot(), sizes=SIZES)
    restored.resolve({sequence: world.episodes[sequence - 1] for sequence in restored.references()})
    for core in (world.core, restored):
        core.users.on_submission(WANTED, 9, "mine")
        assert submitted(core) == [], "nor when it has been played"
        core.users.on_submission(WANTED, 10, "another")
        core.users.on_submission(WANTED, 11, "")
        core.users.on_submission(WANTED, 12, "")
        assert len(submitted(core)) == 3, "the same content under another id, or without one, is another task"


def test_submissions_go_in_the_order_of_the_log() -> None:
    core = World(config()).core
    for sequence, name in enumerate(["a", "b", "c"], start=1):
        core.users.on_submission(WANTED, sequence, name)
    issued = [decision.index for decision in core.plan(0.0) if decision.source == "submitted-math"]
    assert issued == [index_of(name) for name in ("a", "b", "c")]


def test_what_is_remembered_of_submissions_is_bounded() -> None:
    source = Submissions(config(), "math", [], [])
    for place in range(MOST_REMEMBERED + 100):
        source.submit(place, WANTED, str(place))
        if place != 3:
            source.group_closed(index_of(str(place)))
    assert len(source.remembered()) == MOST_REMEMBERED + 1
    assert not source.is_closed(index_of("3")), "it still waits"
    assert source.payload_of("math", index_of("3")) == WANTED.payload
    assert source.is_closed(index_of(str(MOST_REMEMBERED + 99)))


def test_a_submission_outlives_a_restart_before_and_after_it_is_issued() -> None:
    core = World(config()).core
    core.users.on_submission(WANTED, 1, "mine")
    restored = DataflowCore.restore(config(), core.snapshot(), sizes=SIZES)
    issued = [task.id for task in decide(restored) if task.source == "submitted-math"]
    again = DataflowCore.restore(config(), restored.snapshot(), sizes=SIZES)
    unfinished = [task for each in again.unfinished() for task in again.tasks_of(each, lambda env, index: {})]
    mine = [task for task in unfinished if task.source == "submitted-math"]
    assert [task.id for task in mine] == issued
    assert mine[0].payload == {"question": "mine"}


def test_a_submission_behind_the_snapshot_is_read_before_the_decision_that_issued_it() -> None:
    core = World(config()).core
    snapshot = core.snapshot()
    core.users.on_submission(WANTED, 1, "mine")
    decisions = core.plan(0.0)
    restored = DataflowCore.restore(config(), snapshot, sizes=SIZES)
    restored.users.on_submission(WANTED, 1, "mine")
    for decision in decisions:
        restored.apply_decision(decision)
    assert not [task for task in decide(restored) if task.source == "submitted-math"], "it was issued already"


@pytest.mark.parametrize(
    ("submission", "why"),
    [
        (Submission(env="nowhere", payload={}), "which takes none"),
        (Submission(env="math", payload={}, group_size=-1), "has group_size -1"),
        (Submission(env="math", payload={}, group_size=10**6), "expected at most 1024"),
    ],
    ids=["env", "negative", "huge"],
)
def test_what_cannot_be_done_is_said(submission: Submission, why: str) -> None:
    core = World(config()).core
    assert why in core.users.on_submission(submission, 1, "mine").text
    assert {task.source for task in decide(core)} == {"train"}


def test_a_paused_run_issues_nothing_until_it_is_resumed_also_after_a_restart() -> None:
    core = World(config()).core
    assert core.users.on_control(Control(kind=ControlKind.PAUSE), 1).ok
    restored = DataflowCore.restore(config(), core.snapshot(), sizes=SIZES)
    for each in (core, restored):
        assert decide(each) == []
        assert "paused" in each.waits_for()
    restored.users.on_control(Control(kind=ControlKind.RESUME), 2)
    assert decide(restored)


def test_an_order_that_was_stored_again_is_carried_out_once_and_answered_alike() -> None:
    core = World(config()).core
    pause, wrong = Control(kind=ControlKind.PAUSE, order="p"), Control(kind=ControlKind.SET, name="x", order="w")
    assert core.users.on_control(pause, 1).ok
    refusal = core.users.on_control(wrong, 2)
    assert core.users.on_control(Control(kind=ControlKind.RESUME, order="r"), 3).ok
    restored = DataflowCore.restore(config(), core.snapshot(), sizes=SIZES)
    for each in (core, restored):
        assert each.users.on_control(pause, 4).ok
        assert each.users.on_control(wrong, 5) == refusal
        assert decide(each), "it was resumed after that"


def test_an_evaluation_that_is_wanted_begins_once() -> None:
    world = World(config(evals={"held-out": EvalSection(env="math", size=2, every_steps=0)}))
    assert evaluated(world) == {0}
    assert evaluated(world) == set()
    assert world.core.users.on_control(Control(kind=ControlKind.EVALUATE, name="held-out"), 1).ok
    assert evaluated(world) == {1}
    assert evaluated(world) == set()
    assert "did you mean" in world.core.users.on_control(Control(kind=ControlKind.EVALUATE, name="held-outt"), 2).text


def evaluated(world: World) -> set[int]:
    """Issue what is due and answer all that is evaluation; the rounds."""
    world.plan()
    tasks = [task for task in world.queue if task.eval_set]
    for task in tasks:
        world.queue.remove(task)
        world.answer(task, {"solver": 1.0})
    while world.read < len(world.episodes):
        world.read_one()
    return {task.eval_round for task in tasks}


def test_a_knob_is_set_or_the_order_is_refused() -> None:
    core = World(config()).core
    knob = next(key for key in core.users.knobs() if key.startswith("sources.train.select.args."))
    value = core.users.knobs()[knob]
    assert core.users.on_control(Control(kind=ControlKind.SET, name=knob, value=value), 1).ok
    assert "did you mean" in core.users.on_control(Control(kind=ControlKind.SET, name=f"{knob}x", value=1), 2).text
    assert not core.users.on_control(Control(kind=ControlKind.SET, name=knob, value="nonsense"), 3).ok
