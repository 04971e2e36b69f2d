"""One short round of `make chaos` with what the other tests don't kill: nats-server, a joined node, `astraflow up`."""

from pathlib import Path

import pytest

from tests.e2e.disturbed import Round


@pytest.mark.slow
async def test_a_run_survives_the_end_of_its_server_its_nodes_and_its_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    each = Round(7, tmp_path, groups=64)  # so that no machine is through before the last fault

    await each.play(["server", "node", "up", "node"])

    assert len(each.faults) > 1
