"""Every family in the README's table: engine, learner, export and reload agree, or it is refused in words."""

import runpy
from pathlib import Path

import pytest
import transformers

PATH = Path(__file__).parents[2] / "benchmarks" / "families.py"
FAMILIES = runpy.run_path(str(PATH))
REFUSED = {"gemma2": 1, "phi": 1, "granite": 1, "cohere": 1, "mamba": 2}
NATIVE = ("llama", "llama, untied", "qwen2", "qwen3")


@pytest.mark.parametrize("family", FAMILIES["FAMILIES"])
def test_engine_learner_and_export_agree_with_transformers_or_refuse(family: str, tmp_path: Path) -> None:
    transformers.utils.logging.disable_progress_bar()
    row = FAMILIES["examine"](family, tmp_path)
    assert len(row.refusals) == REFUSED.get(family, 0), row.refusals
    assert len(row.distances) == (3, 1, 0)[len(row.refusals)]
    assert row.decoder == ("native" if family in NATIVE else "fallback" if row.distances else "")
    assert all(apart <= FAMILIES["BOUND"] for apart in row.distances), row


def test_the_readme_has_a_row_for_every_family() -> None:
    readme = (PATH.parents[1] / "README.md").read_text(encoding="utf-8")
    shown = readme.split("<!-- families -->")[1].split("<!-- /families -->")[0]
    rows = [line.split("|")[1].strip() for line in shown.splitlines() if line.startswith("| ")][1:]
    assert rows == list(FAMILIES["FAMILIES"])
