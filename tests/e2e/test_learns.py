"""The tiny examples, as a user runs them: separate processes teach real (tiny) models by reinforcement."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.toyrun import finished, sets

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/tiny.toml"


def assert_all_trained_but_what_was_too_old(policy: dict[str, Any], *, tasks: int) -> None:
    """Every batch was full, but for members that were withheld because they would have been too old."""
    trained, stale = policy["trained_tasks"], policy["skipped"].get("stale", 0)
    assert trained <= tasks <= trained + stale, (trained, stale)
    assert trained > 0.9 * tasks


@pytest.mark.slow
async def test_the_tiny_example_learns_and_its_model_can_be_loaded(tmp_path: Path) -> None:
    overrides = sets("policies.solver.trainer.steps=50", "eval.held-out.every_steps=0")
    code, output = await finished(tmp_path, "up", str(EXAMPLE), *overrides, within_s=380)
    assert code == 0, output

    run = tmp_path / "runs/tiny"
    solver = json.loads((run / "summary.json").read_text())["policies"]["solver"]
    before, after = (solver["eval"]["held-out"][when]["correct"] for when in ("before", "after"))
    assert after >= 0.88, output
    assert after >= before + 0.1, output
    assert_all_trained_but_what_was_too_old(solver, tasks=50 * 32 * 8)
    assert solver["staleness_max"] <= 1
    assert (run / "reward-curve.png").read_bytes().startswith(b"\x89PNG")

    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(run / "policies/solver/model", local_files_only=True)
    assert model.num_parameters() > 500_000


@pytest.mark.slow
async def test_two_policies_learn_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=":")  # for its agent
    keys = ("policies.solver.trainer.steps=20", "policies.reviser.trainer.steps=20", "eval.sums.repeats=2")
    overrides = sets(*keys, "eval.sums.every_steps=0")
    code, output = await finished(tmp_path, "up", str(ROOT / "examples/two_policies.toml"), *overrides, within_s=560)
    assert code == 0, output
    policies = json.loads((tmp_path / "runs/two-policies/summary.json").read_text())["policies"]
    for name, least in (("solver", 0.03), ("reviser", 0.12)):
        evaluation = policies[name]["eval"]["sums"]
        assert evaluation["after"]["reward"] >= evaluation["before"]["reward"] + least, output
        assert_all_trained_but_what_was_too_old(policies[name], tasks=20 * 32 * 8)
