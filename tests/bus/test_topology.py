"""The table of streams: names, patterns, disjoint subjects."""

import itertools

import pytest

from astraflow.bus import Kind, Topology, topology_of, wiring
from astraflow.config import BusSection, EnvSection, PolicySection, RunConfig, RunSection, SourceSection
from astraflow.errors import ConfigError
from tests.support import make_topology


@pytest.mark.parametrize("name", ["", "Demo", "a.b", "a b", "a*", "a>", "x" * 33, "ä", "a\n", "-rf", "-", "*", ">"])
def test_bad_names_are_refused_everywhere(name: str) -> None:
    good = {"run": "r", "region": "local", "envs": ["e"], "policies": ["p"]}
    for field, value in {"run": name, "region": name, "envs": [name], "policies": [name]}.items():
        with pytest.raises(ConfigError, match="name"):
            Topology(**(good | {field: value}))  # type: ignore[arg-type]
    topology = Topology(**good)  # type: ignore[arg-type]
    for build in (topology.task, topology.sample, topology.gen, topology.weights, topology.eval_consumer):
        with pytest.raises(ConfigError):
            build(name)


def test_every_subject_is_stored_by_the_stream_of_its_kind() -> None:
    t = make_topology()
    expected = {
        t.task("math"): Kind.TASKS,
        t.eval_task("math"): Kind.TASKS,
        t.gen("solver"): Kind.GEN,
        t.episode("code"): Kind.EPISODES,
        t.decision(): Kind.DECISIONS,
        t.submission(): Kind.SUBMIT,
        t.control(): Kind.CONTROL,
        t.sample("solver"): Kind.SAMPLES,
        t.manifest("solver"): Kind.WEIGHTS,
        f"{t.weight_part('solver', 3)}.abc": Kind.WEIGHTS,
        t.event("info"): Kind.EVENTS,
        t.metric("train"): Kind.METRICS,
        f"{t.snapshot_part()}.abc": Kind.SNAPSHOTS,
        f"{t.blob('owner')}.abc": Kind.BLOBS,
        t.dead_letter("TASKS"): Kind.DEAD_LETTERS,
        t.kv_subject(wiring.MEMBER.key("rollout-a-0")): Kind.MEMBERS,
        t.kv_subject(wiring.HEAD.key("solver")): Kind.KV,
    }
    assert {subject: t.row_of(subject).kind for subject in expected} == expected


@pytest.mark.parametrize("subject", ["af.test.reply.node.1", "af.test.gencancel.solver", "af.other.task.math", "x"])
def test_core_and_foreign_subjects_are_stored_nowhere(subject: str) -> None:
    with pytest.raises(ConfigError, match="no stream"):
        make_topology().row_of(subject)


def test_patterns_of_different_streams_never_overlap() -> None:
    rows = make_topology().rows
    for one, other in itertools.combinations(rows, 2):
        for pattern, subject in itertools.product((*one.subjects, *one.parts), (*other.subjects, *other.parts)):
            assert not _overlap(pattern.split("."), subject.split(".")), (pattern, subject)


def _overlap(a: list[str], b: list[str]) -> bool:
    if not a or not b:
        return a == b
    if ">" in (a[0], b[0]):
        return True
    return (a[0] == b[0] or "*" in (a[0], b[0])) and _overlap(a[1:], b[1:])


def test_streams_have_unique_names_that_hold_run_and_region() -> None:
    here, there = make_topology(), Topology(run="test", region="eu", envs=["math"], policies=["solver"])
    names = [row.stream for row in here.rows + there.rows]
    assert len(names) == len(set(names))
    assert all("AF_test_local" in row.stream for row in here.rows)


def test_only_the_queues_have_consumers_one_per_env_and_policy() -> None:
    t = make_topology()
    keys = {consumer.depth_key for row in t.rows for consumer in row.consumers}
    assert keys == {"task.math", "task.math.eval", "task.code", "task.code.eval", "gen.solver", "gen.verifier"}
    assert all(row.queue for row in t.rows if row.consumers)


def test_the_run_file_sets_the_bounds() -> None:
    config = RunConfig(
        run=RunSection(name="demo"),
        policies={"solver": PolicySection(model="toy")},
        envs={"math": EnvSection(kind="toy")},
        sources={"s": SourceSection(env="math")},
        bus=BusSection(region="eu", max_tasks=7, max_episodes_bytes=8, max_weights_bytes=9, ack_wait_s=1.5),
    )
    t = topology_of(config)
    assert (t.run, t.region, t.limits.ack_wait_s) == ("demo", "eu", 1.5)
    assert t.row_of(t.task("math")).max_per_subject == 7
    assert t.row_of(t.episode("math")).max_bytes == 8
    assert t.row_of(t.manifest("solver")).max_bytes == 9


@pytest.mark.parametrize("key", ["", ".", "a.", "a b", "a.*", "lease.>", "x/y"])
def test_bad_kv_keys_are_refused(key: str) -> None:
    with pytest.raises(ConfigError):
        make_topology().kv_subject(key)


def test_a_region_away_from_home_has_names_of_its_own_and_copies_of_what_the_home_keeps() -> None:
    home = make_topology()
    far = Topology(run="test", region="eu", home="local", envs=home.envs, policies=home.policies)

    assert far.there().rows == home.rows
    assert not {row.stream for row in far.rows} & {row.stream for row in home.rows}
    written = [row for row in far.rows if row.mirror is None]
    patterns = [pattern for row in written for pattern in (*row.subjects, *row.parts)]
    assert all(pattern.startswith("af-eu.test.") for pattern in patterns)
    mirrors = {row.mirror.stream: row.stream for row in far.rows if row.mirror is not None}
    assert mirrors == {
        home.kv: far.kv,
        home.members: far.members,
        home.weights("solver"): far.weights("solver"),
        home.weights("verifier"): far.weights("verifier"),
    }
    kinds = {row.kind for row in far.rows}
    assert kinds.isdisjoint({Kind.DECISIONS, Kind.SAMPLES, Kind.SNAPSHOTS})
    assert far.row_of(far.kv_subject(wiring.MEMBER.key("rollout-a-0"))).kind is Kind.ANNOUNCED
