"""What a machine says that it has and lacks."""

from pathlib import Path

import msgspec

from astraflow.actors.base.connection import Connection
from astraflow.config import EngineSection, EnvSection, SglangSection
from astraflow.node.capability import Machine, available_memory, lacks_env, lacks_model, machine
from tests.actors.run_in_progress import CONFIG

GIB = 1 << 30


def test_an_environment_of_the_users_own_is_looked_for_without_importing_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_own_env_a.py").write_text("raise SystemExit('imported')")
    assert lacks_env(EnvSection(kind="my_own_env_a:Env")) == ""
    assert lacks_env(EnvSection(kind="my_own_env_b:Env")) == "my_own_env_b can't be imported here"
    assert lacks_env(EnvSection(kind="no_package_of_mine.envs:Env")) == "no_package_of_mine.envs can't be imported here"
    assert lacks_env(EnvSection(kind="toy")) == ""


def test_this_machine_has_memory_and_can_run_toys() -> None:
    here = machine(CONFIG, cores=2)
    assert (here.cores, dict(here.lacks_env), dict(here.lacks_model)) == (2, {}, {})
    assert available_memory() > 1 << 20
    assert available_memory(Path("/nowhere")) >= available_memory()


def test_a_model_that_is_trained_takes_more_memory_than_one_that_is_served() -> None:
    here = Machine(cores=1, memory_bytes=4 * GIB)
    assert here.lacks_memory(GIB, "serve") == ""
    assert here.lacks_memory(GIB, "train") == "needs 9,216 MiB of memory, 4,096 MiB are free"


def test_a_model_folder_must_be_here_and_whole(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert lacks_model("tiny-reverse") == ""
    assert lacks_model("base") == f"model folder base isn't here (looked in {tmp_path})"
    (tmp_path / "base").mkdir()
    (tmp_path / "base/config.json").touch()
    assert lacks_model("base")
    (tmp_path / "base/model.safetensors").touch()
    assert lacks_model("base") == ""


def test_a_machine_without_sglang_says_how_to_get_it_and_needs_none_to_attach(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ASTRAFLOW_SGLANG_PYTHON", raising=False)

    def lacks(**section: str) -> str:
        engine = EngineSection(kind="sglang", sglang=SglangSection(**section))
        solver = msgspec.structs.replace(CONFIG.policies["solver"], engine=engine)
        config = msgspec.structs.replace(CONFIG, policies={**CONFIG.policies, "solver": solver})
        return machine(config, cores=1).lacks_engine.get("solver", "")

    assert f"no SGLang interpreter {tmp_path}/.venv-sglang/bin/python; make one with `make sglang`" in lacks()
    assert lacks(url="http://h:1") == ""
    (tmp_path / "python").touch()
    assert lacks(python=str(tmp_path / "python")) == ""


def test_roles_without_a_key_are_named(tmp_path: Path) -> None:
    for role in ("observer", "rollout"):
        (tmp_path / f"{role}.nk").touch()
    connection = Connection(url="nats://h:1", region="local", credentials_dir=str(tmp_path))
    lacking = machine(CONFIG, cores=1, connection=connection).lacks_key
    assert set(lacking) == {"dataflow", "trainer", "policy"}
    assert "no credentials for trainer" in lacking["trainer"]
