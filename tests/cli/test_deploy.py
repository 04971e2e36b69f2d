"""The server settings in deploy/ fit the folders that `astraflow bus --secure` makes."""

import shutil
import subprocess
from pathlib import Path

import pytest

from astraflow.bus.secure import prepare
from astraflow.bus.server import find_binary

DEPLOY = Path(__file__).parents[2] / "deploy" / "nats"


@pytest.mark.parametrize("name", ["hub", "leaf", "cluster"])
def test_nats_server_accepts_the_settings(tmp_path: Path, name: str) -> None:
    prepared = prepare(tmp_path, runs=["demo"], region="local", names=["hub.example.com"])
    shutil.copy(tmp_path / "ca.pem", tmp_path / "hub-ca.pem")
    seed = (prepared.credentials["demo"] / "admin.nk").read_text().strip()
    shutil.copy(DEPLOY / f"{name}.conf", tmp_path)
    done = subprocess.run(
        [find_binary(), "-t", "-c", f"{name}.conf"],
        cwd=tmp_path,
        env={"HUB_SEED": seed},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
