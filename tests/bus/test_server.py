"""The embedded server, as processes."""

import asyncio
import os
import signal
import socket
import stat
import sys
from pathlib import Path

import pytest

from astraflow.bus import BusOptions, EmbeddedServer, NatsBus
from astraflow.errors import BusError
from astraflow.ports import free_port
from tests.support import AT_ONCE_S, eventually, kill, make_topology


async def test_token_and_config_are_readable_by_the_owner_only(nats_server: EmbeddedServer) -> None:
    for path in (nats_server.token_file, nats_server.folder / "nats-server.conf"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert nats_server.token_file.read_text() == nats_server.token
    assert len(nats_server.token) >= 32


async def test_it_listens_on_loopback_only(nats_server: EmbeddedServer) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.2", nats_server.port))  # free: it isn't bound to every address


async def test_wrong_token_is_named_at_once(nats_server: EmbeddedServer) -> None:
    wrong = BusOptions(url=nats_server.url, token="wrong", connect_timeout_s=30.0)
    async with asyncio.timeout(AT_ONCE_S):
        with pytest.raises(BusError, match=r"credentials.*token"):
            async with NatsBus.connect(wrong, make_topology(), producer="test"):
                pass


async def test_no_server_names_the_url_and_the_next_step() -> None:
    options = BusOptions(url="nats://127.0.0.1:1", connect_timeout_s=0.3)
    with pytest.raises(BusError, match=r"127\.0\.0\.1:1.*start a server"):
        async with NatsBus.connect(options, make_topology(), producer="test"):
            pass


async def test_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(BusError, match=f"port {port} on 127.0.0.1 is taken"):
            await EmbeddedServer(tmp_path, port=port).start()


async def test_second_server_on_the_same_folder_is_refused(
    nats_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("astraflow.bus.server.LOCK_WITHIN_S", 0.1)
    with pytest.raises(BusError, match=rf"nats-server \(process {nats_server.pid}\) uses"):
        await EmbeddedServer(nats_server.folder).start()
    assert nats_server.pid


async def test_unusable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BusError, match="can't be used"):
        await EmbeddedServer(tmp_path / "file" / "nats").start()


async def test_restart_keeps_port_and_token_and_data(nats_server: EmbeddedServer) -> None:
    url, token = nats_server.url, nats_server.token
    await kill(nats_server)
    assert nats_server.pid == 0
    await nats_server.start()
    assert (nats_server.url, nats_server.token) == (url, token)
    await nats_server.stop()
    await nats_server.stop()
    fresh = EmbeddedServer(nats_server.folder)
    await fresh.start()
    assert fresh.token == token
    await fresh.stop()


async def test_stop_ends_the_process_and_wait_tells_the_exit_code(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path)
    await server.start()
    pid = server.pid
    await server.stop()
    assert await server.wait() is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


_PARENT = """
import asyncio, sys
from pathlib import Path
from astraflow.bus import EmbeddedServer

async def main():
    server = EmbeddedServer(Path(sys.argv[1]))
    await server.start()
    sys.stdout.write(f"{server.pid}\\n")
    sys.stdout.flush()
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_the_server_dies_with_its_parent_and_frees_the_folder(tmp_path: Path) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _PARENT, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    os.kill(pid, 0)
    parent.send_signal(signal.SIGKILL)
    await parent.wait()
    await eventually(lambda: not _runs(pid))
    successor = EmbeddedServer(tmp_path)
    await successor.start()
    await successor.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_a_frozen_server_whose_parent_is_gone_is_ended_and_its_folder_taken(tmp_path: Path) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _PARENT, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    os.kill(pid, signal.SIGSTOP)  # it can't hear of its parent's end, as on a full disk
    parent.send_signal(signal.SIGKILL)
    await parent.wait()
    successor = EmbeddedServer(tmp_path)
    await successor.start()
    assert not _runs(pid)
    await successor.stop()


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_free_port_is_none_that_an_outgoing_connection_could_get() -> None:
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(1024 < free_port() < first_outgoing for _ in range(50))


async def test_it_listens_on_an_ipv6_address(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path, host="::1")
    await server.start()
    try:
        assert server.url == f"nats://[::1]:{server.port}"
        async with NatsBus.connect(server.options, make_topology(), producer="test") as bus:
            await bus.ensure()
    finally:
        await server.stop()


@pytest.mark.parametrize("name", ['a "quoted" one', "back\\slash", "two\nlines", "# {$HOME} 'x'", "ünï"])
async def test_its_folder_may_be_called_anything(tmp_path: Path, name: str) -> None:
    server = EmbeddedServer(tmp_path / name, token='a"b\\c')
    await server.start()
    try:
        async with NatsBus.connect(server.options, make_topology(), producer="test") as bus:
            await bus.ensure()
        assert (tmp_path / name / "store").is_dir()
    finally:
        await server.stop()


@pytest.mark.parametrize(
    ("host", "port", "told"),
    [
        ("192.0.2.1", 25_000, "192.0.2.1 is no address of this machine"),
        ("192.0.2.1", 0, "192.0.2.1 is no address of this machine"),
        ("2001:db8::1", 0, "2001:db8::1 is no address of this machine"),
        ("nobody.invalid", 25_000, "the name nobody.invalid has no address"),
        ("nobody.invalid", 0, "the name nobody.invalid has no address"),
    ],
)
async def test_an_address_that_is_not_ours_is_named(tmp_path: Path, host: str, port: int, told: str) -> None:
    with pytest.raises(BusError, match=told):
        await EmbeddedServer(tmp_path, host=host, port=port).start()


async def test_another_nats_server_on_the_port_is_not_taken_for_ours(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    ours = EmbeddedServer(tmp_path / "ours", port=nats_server.port)
    with pytest.raises(BusError, match=f"port {nats_server.port} on 127.0.0.1 is taken"):
        await ours.start()
    assert not ours.pid


async def test_what_a_server_says_of_its_settings_is_told(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path, security="authorization { nonsense")
    with pytest.raises(
        BusError, match=r"nats-server didn't start \(exit code 1\): nats-server: Parse error on line 6"
    ) as caught:
        await server.start()
    assert str(caught.value).endswith(f"see {server.log_file}")
    assert "nats-server: " in server.log_file.read_text()


async def test_a_stop_that_is_cut_short_leaves_no_server_behind(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path)
    await server.start()
    pid = server.pid
    os.kill(pid, signal.SIGSTOP)  # ends by SIGKILL alone, as with a full disk
    async with asyncio.TaskGroup() as group:
        stopping = group.create_task(server.stop())
        await asyncio.sleep(0)
        stopping.cancel()
    assert await server.wait() == -signal.SIGKILL
