"""A trainer of two ranks, as a user runs it: one table in the run file; a rank's death is a sentence in `status`."""

import json
import os
import re
import signal
from pathlib import Path

import pytest

from tests.cli.toyrun import finished, sets, started

EXAMPLE = Path(__file__).parents[2] / "examples/tiny.toml"
TWO = sets(
    "policies.solver.trainer.ranks.data=2",
    "policies.solver.trainer.ranks.settle_s=600",
    "policies.solver.trainer.ranks.silent_s=60",
    "policies.solver.trainer.checkpoint_every=2",
    "eval.held-out.every_steps=0",
)


@pytest.mark.slow
async def test_a_killed_rank_is_told_of_and_its_learner_goes_on_from_the_checkpoint(tmp_path: Path) -> None:
    log, trained = tmp_path / "runs/tiny/logs/trainer-local-0.log", tmp_path / "runs/tiny/policies/solver/trained.jsonl"
    async with started(tmp_path, "up", str(EXAMPLE), *TWO, *sets("policies.solver.trainer.steps=1000")) as command:
        await command.expect("step 3/1000")
        follower = re.findall(r"ranks ready ranks=2 followers=\[(\d+)\]", log.read_text())[-1]
        os.kill(int(follower), signal.SIGKILL)
        await command.expect(f"starts again with its ranks: rank 1 of 2 (process {follower}) ended with SIGKILL")
        await command.expect("takes over trainer-solver")
        line = await command.expect("solver step ")
        step = re.search(r"step (\d+)/1000", line)
        assert step, line
        _, status = await finished(tmp_path, "status")
        assert "starts again with its ranks: rank 1 of 2" in status
        command.process.send_signal(signal.SIGTERM)
        assert await command.end() == 5, command.output
    numbers = [json.loads(each)["batch"] for each in trained.read_text().splitlines()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= int(step[1])
