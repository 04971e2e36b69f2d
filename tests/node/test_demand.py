"""Which roles a node takes: hand-worked views of a run and its nodes."""

import math

import msgspec
import pytest

from astraflow.config import DataflowSection, EnvSection, to_json
from astraflow.messages import Head, Member, MemberState, Progress
from astraflow.messages.metric_names import NODE_FREE_SLOTS, POLICY_SLOTS, ROLLOUT_SLOTS
from astraflow.messages.roles import Role, RoleOf
from astraflow.node.capability import Machine
from astraflow.node.demand import Candidate, Patience, assigned, extras, lacks, missing, pressure
from astraflow.view.run_view import RunView
from tests.actors.run_in_progress import CONFIG, RECORD, everybody, member, view_of

GIB = 1 << 30
HERE = Machine(cores=4, memory_bytes=8 * GIB)


def one(text: str) -> RoleOf:
    """The role that is written so."""
    parsed = RoleOf.parse(text)
    assert parsed is not None
    return parsed


def some(*texts: str) -> list[RoleOf]:
    """The roles that are written so."""
    return [one(text) for text in texts]


EVERYTHING = some("dataflow", "trainer:solver", "trainer:judge", "policy:solver", "policy:judge", "rollout", "recorder")
OTHERS = some("trainer:judge", "recorder")  # what `everybody` lacks: the judge was never published


def node(name: str, free_slots: int, *roles: str, **fields: object) -> Member:
    """A node that takes roles by need."""
    gauges = {NODE_FREE_SLOTS: float(free_slots)}
    return member(f"node-{name}", "node", node=name, gauges=gauges, roles=roles, **fields)


def busy_run() -> RunView:
    """30 requests on 10 slots of solver, 4 on 8 of judge, 40 tasks on 20 episodes."""
    others = [m for m in everybody() if m.role not in ("policy", "rollout")]
    view = view_of(
        *others,
        member("policy-n-0", "policy", policy="solver", gauges={POLICY_SLOTS: 10.0}),
        member("policy-n-1", "policy", policy="judge", gauges={POLICY_SLOTS: 8.0}),
        member("rollout-n-0", "rollout", gauges={ROLLOUT_SLOTS: 20.0}),
    )
    view.queues = {"gen.solver": 30, "gen.judge": 4, "task.sums": 36, "task.sums.eval": 4}
    return view


def test_a_run_that_nobody_works_for_lacks_every_role() -> None:
    assert missing(view_of()) == EVERYTHING
    assert missing(view_of(*everybody())) == OTHERS


def test_a_trainer_that_has_finished_is_not_missing() -> None:
    view = view_of(*everybody())
    for policy in ("solver", "judge"):
        done = Progress(policy=policy, consumed=30, step=30, version=30, epoch=1, finished=True)
        view.apply(f"progress.{policy}", done)
    view.apply("member.trainer-n-0", None)
    assert missing(view) == some("recorder")


def test_agents_that_join_are_no_rollout_and_play_alone_where_the_run_says_so() -> None:
    view = view_of(*everybody(), member("rollout-agent-x", "rollout", node="x"))
    view.apply("member.rollout-n-0", None)
    assert missing(view) == some("trainer:judge", "rollout", "recorder")
    config = msgspec.structs.replace(CONFIG, envs={"sums": EnvSection(kind="toy", agent="external")})
    view.apply("run", msgspec.structs.replace(RECORD, config_json=to_json(config)))
    assert missing(view) == OTHERS
    assert one("rollout") not in extras(view, Candidate(free_slots=9))


def test_standbys_are_wanted_on_nodes_of_their_own() -> None:
    view = view_of(*everybody())
    config = msgspec.structs.replace(CONFIG, dataflow=DataflowSection(standbys=1))
    view.apply("run", msgspec.structs.replace(RECORD, config_json=to_json(config)))
    assert missing(view) == [one("dataflow"), *OTHERS]
    assert assigned(view, "n", Candidate(free_slots=9, held=[one("dataflow"), *OTHERS])) == []
    assert assigned(view, "m", Candidate(free_slots=0, held=OTHERS)) == some("dataflow")


def test_a_role_that_a_node_says_it_takes_is_held_before_its_process_is_seen() -> None:
    assert missing(view_of(node("a", 0, *map(str, EVERYTHING)))) == []
    leaving = node("a", 0, *map(str, EVERYTHING), state=MemberState.DRAINING)
    assert missing(view_of(leaving)) == EVERYTHING


def test_a_process_that_leaves_is_missed_before_it_is_gone() -> None:
    view = view_of(*everybody(), member("dataflow-n-0", "dataflow", state=MemberState.DRAINING))
    assert missing(view)[0] == one("dataflow")


def test_one_node_alone_takes_everything_however_small_it_is() -> None:
    assert assigned(view_of(), "a", Candidate(free_slots=1)) == EVERYTHING


def test_missing_roles_go_where_slots_are_free_and_every_node_says_the_same() -> None:
    view = view_of(node("a", 2), node("b", 4), node("c", 1))
    # dataflow and trainers: b (4 → 2) · policy:solver: a and b have 2 → a 1 · policy:judge: b 1 · rollout: a 0 · then b
    own = {"a": 2, "b": 4, "c": 1}
    taken = {name: assigned(view, name, Candidate(free_slots=free)) for name, free in own.items()}
    assert taken == {
        "a": some("policy:solver", "rollout"),
        "b": some("dataflow", "trainer:solver", "trainer:judge", "policy:judge", "recorder"),
        "c": [],
    }
    assert sorted(str(role) for roles in taken.values() for role in roles) == sorted(map(str, EVERYTHING))


def test_nobody_gets_a_role_that_it_lacks_or_has_already_and_others_get_it() -> None:
    view = view_of(*everybody(), node("b", 0))
    view.apply("member.rollout-n-0", None)
    assert assigned(view, "a", Candidate(free_slots=5, lacks={one("rollout"): "no sums"}, held=OTHERS)) == []
    assert assigned(view, "b", Candidate(free_slots=0, held=OTHERS)) == some("rollout")
    lacking = view_of(*everybody(), node("b", 9, unserved={"recorder": "x", "trainer:judge": "no torch"}))
    assert assigned(lacking, "a", Candidate(free_slots=0)) == OTHERS


def test_nodes_that_have_fixed_roles_or_leave_are_no_candidates() -> None:
    fixed = member("node-b", "node", node="b")
    leaving = node("c", 9, state=MemberState.DRAINING)
    assert assigned(view_of(*everybody(), fixed, leaving), "a", Candidate(free_slots=0)) == OTHERS


def test_a_missing_role_is_due_after_it_has_been_missing_without_a_break() -> None:
    patience = Patience(hold_s=2.0)
    both, rollout, recorder = some("rollout", "recorder"), some("rollout"), some("recorder")
    assert patience.due(rollout, 10.0) == []
    assert patience.due(both, 11.9) == []
    assert patience.due(both, 12.0) == rollout
    assert patience.due(recorder, 13.0) == []
    assert patience.due(both, 13.9) == recorder


def test_free_slots_serve_what_has_the_longest_queue_per_slot() -> None:
    view = busy_run()
    assert [pressure(view, role) for role in some("policy:solver", "policy:judge", "rollout")] == [3.0, 0.5, 2.0]
    assert extras(view, Candidate(free_slots=1)) == some("policy:solver")
    assert extras(view, Candidate(free_slots=2)) == some("policy:solver", "rollout")
    assert extras(view, Candidate(free_slots=64)) == some("policy:solver", "rollout", "policy:judge")
    assert extras(view, Candidate(free_slots=2), reserved=some("dataflow", "trainer:solver")) == some("policy:solver")
    assert extras(view, Candidate(free_slots=0)) == extras(view, Candidate(free_slots=-1)) == []


def test_a_role_is_served_once_per_node_and_not_where_it_is_lacking() -> None:
    view = busy_run()
    own = Candidate(free_slots=3, held=some("policy:solver"), lacks={one("rollout"): "no sums"})
    assert extras(view, own) == some("policy:judge")


def test_what_nobody_serves_comes_before_everything() -> None:
    view = busy_run()
    view.apply("member.policy-n-1", None)
    assert pressure(view, one("policy:judge")) == math.inf
    assert extras(view, Candidate(free_slots=1)) == some("policy:judge")


def test_a_deterministic_run_gets_no_second_replica() -> None:
    view = busy_run()
    run = msgspec.structs.replace(CONFIG.run, deterministic=True)
    config = msgspec.structs.replace(CONFIG, run=run)
    view.apply("run", msgspec.structs.replace(RECORD, config_json=to_json(config)))
    assert extras(view, Candidate(free_slots=9)) == []


def test_what_doesnt_fit_is_lacking_with_its_reason() -> None:
    here = Machine(
        cores=4,
        memory_bytes=8 * GIB,
        lacks_engine={"judge": "no torch"},
        lacks_learner={"solver": "no learner"},
        lacks_env={"sums": "no module"},
        lacks_key={Role.RECORDER: "no key"},
    )
    assert lacks(view_of(), here, {"solver": 3 * GIB}) == {
        one("policy:solver"): "needs 9,216 MiB of memory, 8,192 MiB are free",
        one("policy:judge"): "no torch",
        one("trainer:solver"): "no learner",
        one("dataflow"): "sums: no module",
        one("rollout"): "sums: no module",
        one("recorder"): "no key",
    }


@pytest.mark.parametrize(("step", "durable", "needed"), [(0, 0, True), (3, 0, True), (3, 2, False)])
def test_a_trainer_needs_the_base_model_until_one_can_start_from_the_bus(step: int, durable: int, needed: bool) -> None:
    view, here = view_of(), Machine(cores=1, memory_bytes=GIB, lacks_model={"solver": "no folder"})
    head = Head(policy="solver", version=step, step=step, epoch=1, manifest_sequence=1, full_manifest_sequence=1)
    progress = Progress(policy="solver", consumed=3, step=step, version=step, epoch=1, durable_batch=durable)
    view.apply("head.solver", head)
    view.apply("progress.solver", progress)
    assert lacks(view, here, {}) == ({one("trainer:solver"): "no folder"} if needed else {})
