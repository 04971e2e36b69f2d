"""Which roles a joining node takes: hand-worked views of a run and machines."""

import math
from pathlib import Path

from astraflow.actors.base.metrics import POLICY_SLOTS, ROLLOUT_SLOTS
from astraflow.actors.node.need import Machine, available_memory, choose, lacks_env, machine, offers
from astraflow.actors.view.run import RunView
from astraflow.config import EnvSection
from tests.actors.run_in_progress import CONFIG, everybody, member, view_of

GIB = 1 << 30
HERE = Machine(cores=4, memory_bytes=8 * GIB, lacks_engine={}, lacks_env={})


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


def test_the_longest_queue_per_slot_comes_first() -> None:
    found = [(offer.role, offer.pressure) for offer in offers(busy_run(), HERE, {})]
    assert found == [("policy:solver", 3.0), ("rollout", 2.0), ("policy:judge", 0.5)]


def test_what_nobody_serves_comes_before_everything() -> None:
    view = busy_run()
    view.apply("member.policy-n-1", None)
    first = offers(view, HERE, {})[0]
    assert (first.role, first.pressure) == ("policy:judge", math.inf)


def test_a_small_machine_takes_only_the_most_needed_role() -> None:
    found = offers(busy_run(), HERE, {})
    assert choose(found, cores=1) == ["policy:solver"]
    assert choose(found, cores=2) == ["policy:solver", "rollout"]
    assert choose(found, cores=64) == ["policy:solver", "rollout", "policy:judge"]


def test_what_doesnt_fit_is_left_out_and_said() -> None:
    here = Machine(cores=4, memory_bytes=8 * GIB, lacks_engine={"judge": "no torch"}, lacks_env={"sums": "no sums"})
    found = {offer.role: offer.why_not for offer in offers(busy_run(), here, {"solver": 3 * GIB})}
    assert found == {
        "policy:solver": "needs 9,216 MiB of memory, 8,192 MiB are free",
        "policy:judge": "no torch",
        "rollout": "sums: no sums",
    }
    assert choose(offers(busy_run(), here, {"solver": 3 * GIB}), cores=4) == []
    assert choose(offers(busy_run(), here, {"solver": 2 * GIB}), cores=4) == ["policy:solver"]


def test_an_environment_of_the_users_own_is_looked_for_without_importing_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_own_env_a.py").write_text("raise SystemExit('imported')")
    assert lacks_env(EnvSection(kind="my_own_env_a:Env")) == ""
    assert lacks_env(EnvSection(kind="my_own_env_b:Env")) == "my_own_env_b can't be imported here"
    assert lacks_env(EnvSection(kind="no_package_of_mine.envs:Env")) == "no_package_of_mine.envs can't be imported here"
    assert lacks_env(EnvSection(kind="toy")) == ""


def test_this_machine_has_memory_and_can_run_toys() -> None:
    here = machine(CONFIG, cores=2)
    assert (here.cores, dict(here.lacks_env)) == (2, {})
    assert available_memory() > 1 << 20
    assert available_memory(Path("/nowhere")) >= available_memory()
