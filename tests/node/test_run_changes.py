"""What may change in a run between two starts."""

from typing import Any

import msgspec
import pytest

from astraflow.config import RunConfig
from astraflow.errors import ConfigError
from astraflow.node.run_changes import check_changes

BASE: dict[str, Any] = {
    "run": {"name": "demo", "seed": 1},
    "policies": {
        "solver": {"model": "toy", "trainer": {"steps": 10}},
        "judge": {"model": "toy"},
    },
    "envs": {"game": {"kind": "toy", "args": {"level": 1}}},
    "sources": {"game": {"env": "game"}},
}


def config(**changes: Any) -> RunConfig:
    tree = msgspec.json.decode(msgspec.json.encode(BASE))
    for dotted, value in changes.items():
        *path, last = dotted.split("__")
        table = tree
        for part in path:
            table = table.setdefault(part, {})
        table[last] = value
    return msgspec.convert(tree, RunConfig)


def test_nothing_changed() -> None:
    assert check_changes(config(), config()) == []


def test_free_changes_are_listed() -> None:
    changed = config(policies__solver__trainer={"steps": 20}, node__rollouts=2, eval={"held-out": {"env": "game"}})
    listed = check_changes(config(), changed)
    assert "policies.solver.trainer.steps: 10 → 20" in listed
    assert "node.rollouts: 1 → 2" in listed
    assert any(line.startswith("eval.held-out.size: None → 64") for line in listed)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"run__seed": 2}, "run.seed was 1 when run 'demo' began and is 2 now"),
        ({"run__deterministic": True}, "run.deterministic was False"),
        ({"policies__solver__model": "tiny"}, "policies.solver.model was 'toy'"),
        ({"policies__solver__trainer": {"steps": 10, "batch_groups": 4}}, "policies.solver.trainer.batch_groups was 8"),
        ({"policies__judge__trainer": {"steps": 1}}, "policies.judge.trainer"),
        ({"policies__third": {"model": "toy"}}, "policies.third."),
        ({"sources__game__group_size": 4}, "sources.game.group_size was 8"),
        ({"sources__more": {"env": "game"}}, "sources.more."),
        ({"envs__game__args": {"level": 2}}, "envs.game.args.level was 1"),
        ({"bus__region": "eu"}, "bus.region was 'local'"),
    ],
)
def test_what_ids_cursors_or_weights_depend_on_is_refused(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_changes(config(), config(**changes))
    assert str(caught.value).startswith(key)
    assert "start afresh with `--fresh` or another run.name" in str(caught.value)


def test_all_refused_keys_are_named() -> None:
    with pytest.raises(ConfigError, match=r"\(and 1 more: sources.game.first\)"):
        check_changes(config(), config(run__seed=2, sources__game__first=5))
