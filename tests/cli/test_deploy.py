"""The files in deploy/: validators of those who read them accept them, and what they start takes their flags."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from astraflow.bus.secure import prepare
from astraflow.bus.server import find_binary
from astraflow.cli.main import parser

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES = sorted(path for path in (DEPLOY / "kubernetes").rglob("*.yaml") if path.name != "kustomization.yaml")


@pytest.mark.parametrize("name", ["hub", "leaf", "cluster"])
def test_nats_server_accepts_the_settings(tmp_path: Path, name: str) -> None:
    prepared = prepare(tmp_path, runs=["demo"], region="local", names=["hub.example.com"])
    shutil.copy(tmp_path / "ca.pem", tmp_path / "hub-ca.pem")
    seed = (prepared.credentials["demo"] / "admin.nk").read_text().strip()
    shutil.copy(DEPLOY / "nats" / f"{name}.conf", tmp_path)
    done = subprocess.run(
        [find_binary(), "-t", "-c", f"{name}.conf"],
        cwd=tmp_path,
        env={"HUB_SEED": seed},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_compose_is_what_the_specification_says() -> None:
    compose = str(DEPLOY / "compose/compose.yaml")
    run(sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", compose)


@pytest.mark.parametrize("file", KUBERNETES, ids=lambda path: str(path.relative_to(DEPLOY / "kubernetes")))
def test_kubernetes_knows_every_field(file: Path) -> None:
    tool = str(Path(sys.executable).with_name("kubernetes-validate"))
    run(tool, "--strict", str(file))


@pytest.mark.parametrize("overlay", ["cpu", "gpu"])
def test_an_overlay_is_whole(overlay: str, tmp_path: Path) -> None:
    if (kubectl := shutil.which("kubectl")) is None:
        pytest.skip("kubectl isn't on this machine")
    (tmp_path / "all.yaml").write_text(run(kubectl, "kustomize", str(DEPLOY / "kubernetes/overlays" / overlay)))
    run(str(Path(sys.executable).with_name("kubernetes-validate")), "--strict", str(tmp_path / "all.yaml"))


def commands() -> dict[str, list[str]]:
    """What the containers start, by file and name."""
    compose = YAML(typ="safe").load((DEPLOY / "compose/compose.yaml").read_text())
    found = {f"compose {name}": service["command"] for name, service in compose["services"].items()}
    for file in KUBERNETES:
        for document in YAML(typ="safe").load_all(file.read_text()):
            template = document["spec"].get("template", {}).get("spec", {})
            for container in template.get("containers", []):
                found[f"{file.parent.name} {document['metadata']['name']}"] = container["args"]
    return found


@pytest.mark.parametrize(("what", "command"), commands().items(), ids=commands())
def test_what_a_container_starts_is_a_verb_with_its_flags(what: str, command: list[str]) -> None:
    args = parser().parse_all([re.sub(r"\$\{\w+:-(\w+)\}", r"\1", word) for word in command])
    assert args.run is not None
    assert getattr(args, "token_file", "") or command[0] in ("up", "bus"), f"{what} has no token"


def test_the_batch_script_is_a_shell_script() -> None:
    run("bash", "-n", str(DEPLOY / "slurm/run.sbatch"))
    assert os.access(DEPLOY / "slurm/run.sbatch", os.X_OK)
