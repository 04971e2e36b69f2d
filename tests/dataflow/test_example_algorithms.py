"""The example of data algorithms of one's own, named in a run file as a user would, through the real core."""

from pathlib import Path

import pytest

from astraflow.messages import DecisionKind
from astraflow.runfile import load, pipeline
from tests.dataflow.dataflow_world import World

EXAMPLES = Path(__file__).parents[2] / "examples"
RUN = """\
[run]
name = "mine"

[policies.solver]
model = "toy"
engine = { kind = "toy" }

[policies.solver.trainer]
steps = 20
learner = "toy"
filters = ["zero-advantage", "my_filter:NoLongReplies"]
filter_args = { "my_filter:NoLongReplies" = { most_tokens = 2 } }

[envs.game]
kind = "toy"

[sources.game]
env = "game"
size = 20
select = { kind = "my_filter:Fading" }
"""


def test_algorithms_of_ones_own_are_found_used_counted_and_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(EXAMPLES)
    file = tmp_path / "run.toml"
    file.write_text(RUN)
    config = load(file, environments=False)
    assert "my_filter:Fading" in next(pipeline(config))
    world = World(config)
    world.act()
    while (task := world.pull()) is not None:
        world.answer(task)  # three tokens each, one more than allowed
    while world.read < len(world.episodes):
        world.read_one()
    ledger = world.core.ledger("solver")
    assert ledger["my_filter:NoLongReplies"] + ledger.get("zero-advantage", 0) == ledger["issued"] == 128
    world.core.users.set_knob("policies.solver.trainer.filter_args.my_filter:NoLongReplies.most_tokens", 3)
    world.save()
    world.crash()
    world.run()
    issued = [d for d in world.decisions if d.kind is DecisionKind.ISSUE]
    assert max(d.position for d in issued) > 2 * len(issued), "most tasks are skipped when they come up again"
    assert world.trainers["solver"].step == 20
