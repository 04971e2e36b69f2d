"""Redundant members in a real run: the slow ones of a group are cancelled, down to the engine."""

from pathlib import Path

import pytest

from astraflow.view.jsonl_lines import read_episodes, read_metrics
from tests.cli.toyrun import TOY, finished, sets, write_toy

# The last member of every group asks for tokens for half an hour. The engine has fewer slots than the run has groups.
ENV = """
from msgspec.structs import replace

from astraflow.envs.toy_env import ToyEnv
from astraflow.messages import Sampling


class SlowLast(ToyEnv):
    async def run(self, task, policies):
        if task.member == task.group_size - 1:
            task = replace(task, sampling=Sampling(max_new_tokens=100_000, ignore_eos=True))
        return await super().run(task, policies)
"""


@pytest.mark.slow
async def test_redundant_members_are_cancelled_and_the_engine_stops_generating(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(ENV)
    text = TOY.replace('kind = "toy"\n\n[sources', 'kind = "slow:SlowLast"\n\n[sources').split("[eval")[0]
    file = write_toy(tmp_path, text)
    wanted = sets(
        "sources.game.extra=1",
        "policies.solver.engine.slots=6",
        "policies.solver.engine.toy_step_s=0.02",
        "policies.solver.engine.context_length=200000",
        "policies.solver.trainer.steps=5",
    )
    code, output = await finished(tmp_path, "up", str(file), *wanted, within_s=300)
    assert code == 0, output
    folder = tmp_path / "runs" / "demo"
    ended = [(int(each.task_id.split("/")[-1]), each.reason) for each in read_episodes(folder / "episodes.jsonl")]
    assert {reason for member, reason in ended if member == 4} == {"cancelled"}
    assert ended.count((4, "cancelled")) > 6, "each would have held one of the engine's six slots"
    assert {reason for member, reason in ended if member < 4} <= {"ok", "cancelled"}
    values = [each.values for each in read_metrics(folder / "metrics.jsonl") if each.kind == "dataflow"]
    assert values
    assert all(each["dataflow.skipped_tasks"] == each["dataflow.replayed_groups"] == 0 for each in values)
