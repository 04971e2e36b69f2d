"""Runs that train on a SGLang server, as a user starts them. Run by `make test-sglang`.

Needs `make sglang-cpu`, or ASTRAFLOW_SGLANG_PYTHON.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from astraflow.actors.base.connection import Connection
from astraflow.bus import Bus, EmbeddedServer
from astraflow.messages import ChunkKind, GenChunk, MemberState
from astraflow.messages.metric_names import TRAIN_MISMATCH
from astraflow.view.jsonl_lines import read_episodes, read_metrics
from tests.cli.toyrun import finished, sets, started
from tests.e2e.liverun import bus_of, members
from tests.e2e.processes import batches, pid_of, trained_tasks
from tests.e2e.test_continuation import chunks_of
from tests.sglang.server import ROOT, sglang_python
from tests.support import eventually

EXAMPLE = ROOT / "examples/tiny_sglang.toml"
STEPS = 4
START_S = 900.0  # of a server: half a minute on a quiet machine
PATIENCE_S = 900.0

pytestmark = [pytest.mark.timeout(3600), pytest.mark.asyncio]


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTRAFLOW_SGLANG_PYTHON", str(sglang_python()))
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=":")


async def test_the_tiny_example_trains_on_tokens_that_the_server_sampled(tmp_path: Path, record_property) -> None:
    exact = "policies.solver.trainer.max_staleness=0"  # then the mismatch of a step is numerics alone
    looked = "policies.solver.engine.sglang.verify_every=2"
    settings = sets(f"policies.solver.trainer.steps={STEPS}", exact, looked, "record.keep_episodes=true")
    async with started(tmp_path, "up", str(EXAMPLE), *settings) as command:
        await command.expect("solver step 1/", within_s=START_S)
        assert command.process.pid is not None
        processes = set(descendants(command.process.pid))
        folders = set(map(server_folder, processes)) - {None}
        assert await command.end(PATIENCE_S) == 0, command.output

    run = tmp_path / "runs/tiny-sglang"
    mismatches = [m.values[TRAIN_MISMATCH] for m in read_metrics(run / "metrics.jsonl") if TRAIN_MISMATCH in m.values]
    assert len(mismatches) == STEPS
    assert max(mismatches) < 1e-4
    record_property("engine and learner differ by", max(mismatches))
    served = {version for e in read_episodes(run / "episodes.jsonl") for r in e.replies for version in r.versions}
    assert served == set(range(STEPS + 1))
    assert trained_tasks(run).most_common(1)[0][1] == 1
    assert "weights-differ" not in (run / "events.jsonl").read_text()

    (folder,) = folders
    await eventually(lambda: not any(map(alive, processes)), within_s=60)
    assert not folder.exists()


async def test_a_killed_server_loses_nothing_and_comes_back(
    nats_server: EmbeddedServer, tmp_path: Path, record_property
) -> None:
    connection = Connection(url=nats_server.url, region="local", token_file=nats_server.token_file)
    settings = [f"bus.url={nats_server.url}", f"bus.token_file={nats_server.token_file}"]
    settings += ["policies.solver.trainer.steps=100000", "policies.solver.engine.sglang.args.stream_interval=1"]
    run = tmp_path / "runs/tiny-sglang"
    async with started(tmp_path, "up", str(EXAMPLE), *sets(*settings)) as command:
        await command.expect("dataflow-local-0 is ready", within_s=PATIENCE_S)
        async with (
            cpu_replica(connection, tmp_path, command.process.pid),
            bus_of(connection, "tiny-sglang") as bus,
            chunks_of(bus) as heard,
        ):
            await command.expect("policy-local-0 is ready", within_s=START_S)
            before = (await members(bus))["policy-local-0"].incarnation
            await sampling(heard, before)
            for pid, _ in descendants(pid_of("policy-local-0", parent=command.process.pid)):
                os.kill(pid, signal.SIGKILL)
            await eventually(lambda: continued(heard, before), within_s=PATIENCE_S)
            after = await ready_again(bus, before)
            await sampling(heard, after)
        code, output = await finished(
            tmp_path,
            "stop",
            "--url",
            nats_server.url,
            "--run",
            "tiny-sglang",
            "--token-file",
            str(nats_server.token_file),
        )
        assert code == 0, output
        assert await command.end(PATIENCE_S) == 0, command.output
    numbers = batches(run)
    assert numbers == list(range(1, len(numbers) + 1))
    assert trained_tasks(run).most_common(1)[0][1] == 1
    ledger = json.loads((run / "summary.json").read_text())["policies"]["solver"]["ledger"]
    assert not set(ledger) & {"infra", "timeout"}, ledger
    record_property("requests that went on elsewhere", continued(heard, before))


@contextlib.asynccontextmanager
async def cpu_replica(connection: Connection, folder: Path, up: int) -> AsyncIterator[None]:
    """Another replica of the run's policy, on our own engine."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.sglang.cpu_replica",
        "--role",
        "policy",
        "--name",
        "policy-cpu-0",
        "--run",
        "tiny-sglang",
        "--policy",
        "solver",
        "--node",
        "cpu",
        "--folder",
        str(folder / "cpu"),
        "--url",
        connection.url,
        "--token-file",
        str(connection.token_file),
    )
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


async def ready_again(bus: Bus, before: str) -> str:
    """The incarnation of the SGLang replica, once it serves and is another than before."""
    found: list[str] = []

    async def there() -> bool:
        member = (await members(bus)).get("policy-local-0")
        if member is not None and member.state is MemberState.READY and member.incarnation != before:
            found.append(member.incarnation)
        return bool(found)

    await eventually(there, within_s=START_S)
    return found[0]


async def sampling(heard: list[GenChunk], incarnation: str) -> None:
    """Return when a replica has just sent tokens that aren't the last."""
    since = len(heard)

    def some() -> bool:
        return any(
            c.replica == incarnation and c.kind is ChunkKind.TOKENS and not c.finish_reason for c in heard[since:]
        )

    await eventually(some, within_s=PATIENCE_S)


def continued(heard: list[GenChunk], incarnation: str) -> int:
    """Requests with tokens of this replica, and later ones of another."""
    first: dict[str, int] = {}
    found: set[str] = set()
    for chunk in heard:
        if chunk.kind is not ChunkKind.TOKENS:
            continue
        if chunk.replica == incarnation:
            first.setdefault(chunk.request_id, chunk.attempt)
        elif chunk.position > 0 and chunk.attempt > first.get(chunk.request_id, chunk.attempt):
            found.add(chunk.request_id)
    return len(found)


def descendants(pid: int) -> Iterator[tuple[int, str]]:
    """(pid, start time) of a process's children, theirs, and so on."""
    children: dict[int, list[tuple[int, str]]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (found := _stat(int(entry.name))):
            parent, begun = found
            children.setdefault(parent, []).append((int(entry.name), begun))
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), []):
            waiting.append(child[0])
            yield child


def alive(process: tuple[int, str]) -> bool:
    """Whether it still runs."""
    found = _stat(process[0])
    return found is not None and found[1] == process[1]


def _stat(pid: int) -> tuple[int, str] | None:
    """(parent, start time) of a process; None if there is none, or it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else (int(fields[1]), fields[19])


def server_folder(process: tuple[int, str]) -> Path | None:
    """The folder that a server was given; None for other processes."""
    try:
        arguments = Path(f"/proc/{process[0]}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return None
    return Path(arguments[arguments.index("--model-path") + 1]).parent if "--model-path" in arguments else None
