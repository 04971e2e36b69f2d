"""Which processes a node starts, with which command lines, shares and drain order."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from astraflow.actors.base.connection import Connection
from astraflow.bus import Topology
from astraflow.config import RunConfig
from astraflow.errors import ConfigError
from astraflow.messages.roles import Role, RoleOf
from astraflow.node.join import node_name
from astraflow.node.processes import NodeProcesses, Planned, parse_role, roles_of
from astraflow.node.up import join_command, needed_bytes
from astraflow.runfile import load
from tests.cli.toyrun import write_toy

JUDGE = "policies.judge={ model = 'toy', engine = { kind = 'toy', replicas = 2 } }"
CONNECTION = Connection(url="nats://127.0.0.1:4222", region="local", token_file=Path("nats/token"))


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return load(write_toy(tmp_path), [JUDGE, "envs.game.args.policy=solver", "node.rollouts=2"], environments=False)


def planned(config: RunConfig, cores: int = 8) -> list[Planned]:
    return processes(config, cores).plan(roles_of(config))


def processes(config: RunConfig, cores: int) -> NodeProcesses:
    return NodeProcesses(config=config, node="local", connection=CONNECTION, folder=Path("runs/demo"), cores=cores)


def flag(process: Planned, name: str) -> str:
    command = process.spec.command
    return command[command.index(name) + 1] if name in command else ""


def test_one_machine_gets_every_role(config: RunConfig) -> None:
    assert sorted((p.spec.name, flag(p, "--policy")) for p in planned(config)) == [
        ("dataflow-local-0", ""),
        ("policy-local-0", "solver"),
        ("policy-local-1", "judge"),
        ("policy-local-2", "judge"),
        ("recorder-local-0", ""),
        ("rollout-local-0", ""),
        ("rollout-local-1", ""),
        ("trainer-local-0", "solver"),
        ("trainer-local-1", "judge"),
    ]


def test_command_and_environment_carry_the_same_threads(config: RunConfig) -> None:
    for process in planned(config):
        computes = process.role in (RoleOf(Role.POLICY, process.role.policy), RoleOf(Role.TRAINER, "solver"))
        threads = "2" if computes else "1"  # of 8 cores for 4 processes; the frozen judge's trainer only publishes it
        assert flag(process, "--threads") == process.spec.environment["OMP_NUM_THREADS"] == threads
        assert flag(process, "--token-file") == "nats/token"
        assert flag(process, "--run") == "demo"
        assert "--credentials-file" not in process.spec.command


def test_rollouts_drain_first_and_the_recorder_last(config: RunConfig) -> None:
    order = [p.role.role for p in sorted(planned(config), key=lambda p: p.spec.stage)]
    assert list(dict.fromkeys(order)) == ["rollout", "policy", "dataflow", "trainer", "recorder"]


def test_who_comes_later_gets_what_an_even_share_would_be(config: RunConfig) -> None:
    here = processes(config, cores=8)
    solver, trainer = parse_role("policy:solver", config), parse_role("trainer:solver", config)
    first = here.plan([solver], expected=[trainer])
    assert [flag(p, "--threads") for p in first] == ["4"]
    names = [p.spec.name for p in first]
    assert [flag(p, "--threads") for p in here.plan([trainer], running=names)] == ["4"]
    assert [flag(p, "--threads") for p in here.plan([solver], running=list(here.planned))] == ["2"]
    assert list(here.planned) == ["policy-local-0", "trainer-local-0", "policy-local-1"]


def test_a_machine_with_few_cores_gives_every_process_one_thread(config: RunConfig) -> None:
    here = processes(config, cores=1)
    roles = [parse_role(text, config) for text in ("policy:solver", "trainer:solver", "policy:judge")]
    assert [flag(p, "--threads") for p in here.plan(roles)] == ["1", "1", "1"]


def test_roles_are_read_from_their_flags(config: RunConfig) -> None:
    texts = ["policy:judge", "rollout", "trainer:solver", "dataflow", "recorder"]
    roles = [parse_role(text, config) for text in texts]
    assert [(r.role.role, r.role.policy, r.count) for r in roles] == [
        ("policy", "judge", 1),
        ("rollout", "", 2),
        ("trainer", "solver", 1),
        ("dataflow", "", 1),
        ("recorder", "", 1),
    ]
    assert [str(each.role) for each in roles] == texts


@pytest.mark.parametrize("role", ["node", "trainer", "policy", "policy:solvr", "rollout:solver", "recorder:x", ""])
def test_roles_that_cant_join_are_explained(config: RunConfig, role: str) -> None:
    with pytest.raises(ConfigError, match=rf"^--role {role}: "):
        parse_role(role, config)


def test_node_names_can_be_part_of_subjects() -> None:
    first, second = node_name("GPU 7"), node_name("GPU 7")
    assert first != second
    assert first.startswith("gpu-7-")
    assert node_name() != node_name()
    Topology(run=first, region="local", envs=(), policies=())  # refuses what isn't a name


def test_the_join_command_names_a_reachable_host() -> None:
    local = join_command("demo", ("10.0.0.5", 4222), CONNECTION)
    assert local == "astraflow node --join nats://10.0.0.5:4222 --run demo --token-file nats/token"
    anywhere = join_command("demo", ("0.0.0.0", 4222), Connection(url="nats://0.0.0.0:4222", region="eu"))
    assert "0.0.0.0" not in anywhere
    assert anywhere.endswith(":4222 --run demo --region eu")


def test_needed_disk_counts_versions_and_checkpoints(config: RunConfig, tmp_path: Path) -> None:
    save_file({"weight": np.zeros(100, np.float32)}, tmp_path / "model.safetensors")
    size = (tmp_path / "model.safetensors").stat().st_size
    assert needed_bytes(config, {"toy": tmp_path}) == 2 * 3 * size + 3 * 6 * size
