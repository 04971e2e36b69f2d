"""A live run without a learning signal says so by itself, as an event and in `status`."""

import json
import re
from pathlib import Path

from tests.cli.toyrun import finished, sets
from tests.e2e.finite import FiniteRun

FLAT = ("envs.game.args.flat_share=1.0", 'policies.solver.trainer.filters=["zero-advantage"]')


async def test_equal_rewards_are_an_event_with_number_reason_and_next_step(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(FiniteRun(name="flat", groups=40, members=2, new_tokens=4).text())
    code, output = await finished(tmp_path, "up", "run.toml", *sets(*FLAT))
    assert code == 0, output
    events = [json.loads(line) for line in (tmp_path / "runs/flat/events.jsonl").read_text().splitlines()]
    (told,) = [event for event in events if event["name"] == "no-learning-signal"]
    assert told["level"] == "warning"
    groups, episodes = map(int, re.findall(r"solver learns nothing: its last (\d+) groups \((\d+) ep", told["text"])[0])
    assert (groups >= 32, episodes) == (True, 2 * groups)
    assert "sample more answers per task" in told["text"]

    assert "ended early its sources have no more tasks" in output
    assert "optimizer steps (NaN" not in output
    code, output = await finished(tmp_path, "up", "run.toml", *sets(*FLAT))
    assert code == 0, output
    assert "go on:        --fresh --set sources.game.epochs=2" in output
    assert "trainer.steps=" not in output, "more steps would find no more tasks"
