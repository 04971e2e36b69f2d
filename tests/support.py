"""Helpers that every test folder shares. No mocks: real servers, real processes."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from astraflow.bus import EmbeddedServer, Limits, Topology
from astraflow.bus.server import find_binary
from astraflow.messages import Episode, Reason, Task
from astraflow.models import ChatTokenizer
from astraflow.ports import free_port

POLL_S = 0.01
LIMIT_S = 90.0  # for waiting, on a machine that others want too; reached only when something is broken
AT_ONCE_S = 15.0  # far below the ack wait of 30 s, which it could be instead


async def eventually(predicate: Callable[[], Any | Awaitable[Any]], within_s: float = LIMIT_S) -> Any:
    """The predicate's first true value; fails the test if there is none within `within_s`."""
    value: Any = None
    try:
        async with asyncio.timeout(within_s):
            while True:
                value = predicate()
                if isinstance(value, Awaitable):
                    value = await value
                if value:
                    return value
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise AssertionError(f"not within {within_s:g} s; the last value was {value!r}") from None


def make_topology(run: str = "test", **limits: Any) -> Topology:
    """A small run: envs math and code, policies solver and verifier."""
    return Topology(
        run=run, region="local", envs=["math", "code"], policies=["solver", "verifier"], limits=Limits(**limits)
    )


def make_task(id: str = "task", env: str = "math", **fields: Any) -> Task:
    """A valid task."""
    given = {"group_id": "group", "group_size": 1, "member": 0, "source": "source", "payload": {}, "seed": 1} | fields
    return Task(id=id, env=env, **given)


def make_episode(task_id: str = "task", env: str = "math", **fields: Any) -> Episode:
    """A valid episode without trajectories."""
    given = {"attempt": 0, "group_id": "group", "group_size": 1, "member": 0, "source": "source"}
    return Episode(task_id=task_id, env=env, **{"reason": Reason.OK, **given, **fields})


async def kill(server: EmbeddedServer) -> None:
    """kill -9, and wait until it is gone."""
    os.kill(server.pid, signal.SIGKILL)
    await server.wait()


@asynccontextmanager
async def server_with(config: str, folder: Path, *, jetstream: bool = True) -> AsyncIterator[str]:
    """A nats-server with a configuration of the test's own (without `listen` and `store_dir`); yields its url."""
    port = free_port()
    _write_config(folder, port, config, jetstream=jetstream)
    process = await asyncio.create_subprocess_exec(find_binary(), "-c", str(folder / "conf"), "-l", str(folder / "log"))
    try:
        await eventually(lambda: _listens(port))
        yield f"nats://127.0.0.1:{port}"
    finally:
        process.kill()
        await process.wait()


def _write_config(folder: Path, port: int, config: str, *, jetstream: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    store = f'jetstream {{ store_dir: "{folder}/store" }}' if jetstream else ""
    (folder / "conf").write_text(f'listen: "127.0.0.1:{port}"\n{store}\n{config}\n')


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


def prompt_tokens(tokenizer: ChatTokenizer, messages: Sequence[Any]) -> list[int]:
    """What the engine gets for a conversation."""
    return tokenizer.encode(tokenizer.template(messages))
