"""The run file that tests change."""

from pathlib import Path

import pytest

from tests.runfile.runfiles import TOY


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.toml"
    path.write_text(TOY)
    return path
