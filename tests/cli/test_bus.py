"""`astraflow bus --secure` from the command line, and a whole run on it with a key per role."""

import asyncio
import shutil
import signal
from pathlib import Path

import pytest

from astraflow.actors.__main__ import parse
from astraflow.actors.base.connection import Connection, from_flags
from astraflow.bus.server import find_binary
from astraflow.errors import ConfigError
from astraflow.messages.roles import Role
from astraflow.ports import free_port
from tests.cli.toyrun import finished, sets, started, write_toy


def test_an_actor_gets_its_own_role_s_key_and_no_secret_in_its_command(tmp_path: Path) -> None:
    for role in Role:
        (tmp_path / f"{role}.nk").touch()
    given = Connection(url="nats://h:1", region="eu", token="secret", credentials_dir=str(tmp_path), ca_file="ca.pem")
    for actor in ("policy", "rollout", "dataflow", "trainer", "recorder"):
        own = given.for_role(Role(actor))
        command = ["--role", actor, "--name", "n", "--run", "r", "--folder", "f", *own.flags()]
        assert "secret" not in " ".join(command)
        assert from_flags(parse(command), own.environment()) == own
        assert own.credentials_file == str(tmp_path / f"{'observer' if actor == 'recorder' else actor}.nk")
    (tmp_path / "policy.nk").unlink()
    with pytest.raises(ConfigError, match=r"no credentials for policy: copy policy\.nk"):
        given.for_role(Role.POLICY)


def test_a_token_file_goes_before_the_environment(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")
    flags = ["--role", "rollout", "--name", "n", "--run", "r", "--folder", "f", "--url", "nats://h:1"]
    environment = {"ASTRAFLOW_TOKEN": "from-environment"}
    with_file = from_flags(parse([*flags, "--token-file", str(tmp_path / "token")]), environment)
    assert with_file.options().token == "from-file"
    assert from_flags(parse(flags), environment).options().token == "from-environment"


async def test_files_only_makes_files_that_nats_server_accepts(tmp_path: Path) -> None:
    code, output = await finished(tmp_path, "bus", "--secure", "hub", "--run", "a", "--run", "b", "--files-only")
    assert code == 0, output
    assert "ready" in output
    (tmp_path / "conf").write_text('include "hub/accounts.conf"\n')
    check = await asyncio.create_subprocess_exec(find_binary(), "-t", "-c", str(tmp_path / "conf"))
    assert await check.wait() == 0


@pytest.mark.slow
async def test_a_secured_cluster_without_a_main_machine_and_what_it_refuses(tmp_path: Path) -> None:
    write_toy(tmp_path)
    url = f"nats://127.0.0.1:{free_port()}"
    async with started(tmp_path, "bus", "--secure", "hub", "--run", "demo", "--listen", url[7:]) as bus:
        await bus.expect("astraflow submit run.toml --url")
        keys, trusting = tmp_path / "hub/credentials/demo", ["--ca-file", "hub/ca.pem"]
        secured = ["--credentials-dir", str(keys), *trusting]
        for name, roles in (("thin", ("rollout",)), ("fat", ("dataflow", "trainer", "policy"))):
            (tmp_path / name).mkdir()
            for role in ("observer", *roles):
                shutil.copy(keys / f"{role}.nk", tmp_path / name)
        (tmp_path / "wrong").write_text("a token\n")

        of_run, submit = ["status", "--url", url, "--run", "demo"], ["submit", "run.toml", "--url", url]
        for code, words, command in (
            (2, "there is no run 'demo'", [*of_run, *secured]),
            (1, "isn't trusted", [*of_run, "--credentials-dir", str(keys)]),
            (1, "refuses the credentials", [*of_run, "--token-file", "wrong", *trusting]),
            (
                2,
                "no credentials for admin",
                [*submit, "--credentials-dir", "thin", *trusting],
            ),
            (
                2,
                "keys of run 'demo', not of 'x'",
                [*submit, "--set", "run.name=x", *secured],
            ),
        ):
            found, output = await finished(tmp_path, *command)
            assert (found, words in output, output.count("\n")) == (code, True, 1), output

        code, output = await finished(tmp_path, *submit, *secured)
        assert code == 0, output
        join = ["node", "--join", url, *trusting, "--credentials-dir"]
        async with started(tmp_path, *join, "thin") as thin, started(tmp_path, *join, "fat") as fat:
            assert [await node.end() for node in (thin, fat)] == [0, 0], thin.output + fat.output
        assert "takes rollout-" in thin.output
        assert "denied" not in "".join(log.read_text() for log in (tmp_path / "runs").glob("*/logs/*"))
        bus.process.send_signal(signal.SIGTERM)
        assert await bus.end() == 0


@pytest.mark.slow
async def test_a_run_on_a_secured_server_gives_every_process_its_own_key(tmp_path: Path) -> None:
    write_toy(tmp_path)
    port = free_port()
    async with started(tmp_path, "bus", "--secure", "hub", "--run", "demo", "--listen", f"127.0.0.1:{port}") as bus:
        await bus.expect("astraflow node --join")
        at = [f"bus.url=nats://127.0.0.1:{port}", "bus.ca_file=hub/ca.pem"]
        credentials = "bus.credentials_dir=hub/credentials/demo"

        code, output = await finished(tmp_path, "up", "run.toml", *sets(*at))
        assert (code, "no token and no credentials" in output) == (1, True), output
        rollout = "bus.credentials_file=hub/credentials/demo/rollout.nk"
        code, output = await finished(tmp_path, "up", "run.toml", *sets(*at, rollout))
        assert (code, "credentials don't allow" in output) == (1, True), output

        code, output = await finished(tmp_path, "up", "run.toml", *sets(*at, credentials))
        assert code == 0, output
        assert "denied" not in "".join(log.read_text() for log in (tmp_path / "runs/demo/logs").iterdir())

        bus.process.send_signal(signal.SIGTERM)
        assert await bus.end() == 0
