"""A SGLang server as a child process, in the interpreter of its own venv.

It doesn't restart it: a server that ended has lost its weights, so its replica ends too, and starts anew from the bus.
Invariants: it listens on loopback only, with a key that only this user can read; it ends when this process does; its
log goes where this process's does, and its last lines are part of what is said about its end.
"""

import asyncio
import contextlib
import json
import os
import secrets
import signal
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from astraflow.concurrency import Background
from astraflow.config import SglangSection
from astraflow.engines.sglang.client import Client
from astraflow.engines.sglang.supported import check_supported, find_python
from astraflow.engines.sglang.updates import APPLY, DESCRIBE
from astraflow.errors import EngineError, RefusedError
from astraflow.lifeline import dies_with_parent
from astraflow.ports import free_port

HOST = "127.0.0.1"
ASK_EVERY_S = 0.5
ASK_WITHIN_S = 30.0  # /health generates a token
STOP_WITHIN_S = 15.0
_LAST_LINES = 15
_USAGE_ERROR = 2  # exit code
SERVERSIDE = Path(__file__).parent / "serverside"
_STREAM_INTERVAL = 4  # tokens per event; a kill costs as many


class LaunchedServer:
    """One server of one replica. Args: model: a folder with config.json and weights; secret: a folder for its key."""

    how = "launched"

    def __init__(
        self, section: SglangSection, model: Path, secret: Path, *, args: Mapping[str, Any], dtype: str, label: str
    ) -> None:
        self._section = section
        self._model = model
        self._secret = secret
        self._args = args
        self._dtype = dtype
        self._label = label
        self.key = secrets.token_urlsafe(32)
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, background: Background) -> Client:
        """Returns when it generates tokens. Raises EngineError with what the server said."""
        python = find_python(self._section)
        await check_supported(python)
        port = free_port(HOST)
        self._process = await self._spawn(python, port)
        background.start(self._read())
        client = await Client(f"http://{HOST}:{port}", self.key).open()
        try:
            async with asyncio.timeout(self._section.start_within_s):
                await self._until_ready(client)
        except TimeoutError as exc:
            await client.close()
            raise EngineError(
                f"the SGLang server is not ready after engine.sglang.start_within_s = "
                f"{self._section.start_within_s:g} s; its last lines:\n{self._last_lines()}"
            ) from exc
        except BaseException:
            await client.close()
            raise
        return client

    async def _spawn(self, python: Path, port: int) -> asyncio.subprocess.Process:
        config = self._secret / "server.yaml"
        config.touch(mode=0o600)
        config.write_text(json.dumps({"api-key": self.key}))  # not on the command line, which everybody can read
        return await asyncio.create_subprocess_exec(
            str(python),
            "-m",
            "sglang.launch_server",
            "--config",
            str(config),
            "--host",
            HOST,
            "--port",
            str(port),
            "--model-path",
            str(self._model),
            "--weight-version",
            self._label,
            "--dtype",
            self._dtype,
            "--custom-weight-loader",
            APPLY,
            DESCRIBE,
            "--skip-tokenizer-init",
            "--incremental-streaming-output",
            "--enable-metrics",
            *server_flags(self._args),
            env=self._environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # it gets signals from here only
            preexec_fn=dies_with_parent(signal.SIGKILL),  # its own processes notice and end
        )

    def _environment(self) -> Mapping[str, str]:
        environment = dict(os.environ)
        environment["PYTHONPATH"] = str(SERVERSIDE)
        for name in ("VIRTUAL_ENV", "PYTHONHOME"):
            environment.pop(name, None)
        if self._args.get("device") == "cpu":
            environment |= {"SGLANG_USE_CPU_ENGINE": "1", "CUDA_VISIBLE_DEVICES": ""}
        return environment

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await _line(self._process.stdout):
            text = line.decode(errors="replace").replace(self.key, "***")  # SGLang prints its arguments
            sys.stderr.write(f"sglang: {text}")
            self._lines.append(text)

    async def _until_ready(self, client: Client) -> None:
        while True:
            if await self._ready(client):
                return
            await asyncio.sleep(ASK_EVERY_S)

    async def _ready(self, client: Client) -> bool:
        assert self._process is not None
        if self._process.returncode is not None:
            raise EngineError(await self.ended())
        try:
            await client.get("/model_info", within_s=ASK_WITHIN_S)
            await client.get_text("/health", within_s=ASK_WITHIN_S)
        except RefusedError as exc:
            if exc.status == 401:
                raise EngineError(f"another server listens where SGLang should: {exc}") from exc
            return False
        except EngineError:
            return False
        return True

    async def ended(self) -> str:
        """Wait for the server's end; why, for people."""
        assert self._process is not None
        code = await self._process.wait()
        how = f"ended with exit code {code}"
        if code < 0:
            how = f"was killed by signal {-code} ({signal.Signals(-code).name})"
            if code == -signal.SIGKILL:
                how += ", perhaps because the machine ran out of memory"
        refused = [line for line in self._lines if ": error: " in line]
        if code == _USAGE_ERROR and refused:
            return (
                f"the SGLang server does not take engine.sglang.args: {refused[-1].partition(': error: ')[2].strip()}"
            )
        return f"the SGLang server {how}; its last lines:\n{self._last_lines()}"

    def _last_lines(self) -> str:
        return "".join(self._lines) or "(none)\n"

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL, to all of its processes. Idempotent."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_WITHIN_S):
                    await process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def server_flags(args: Mapping[str, Any]) -> Sequence[str]:
    """Command line flags of `engine.sglang.args`: true is a bare flag, false is none, a list is repeated values."""
    defaults: dict[str, Any] = {"stream_interval": _STREAM_INTERVAL}
    if args.get("device") == "cpu":
        defaults |= {"attention_backend": "torch_native", "sleep_on_idle": True}
    flags: list[str] = []
    for name, value in {**defaults, **args}.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            flags += [flag] if value else []
        elif isinstance(value, list):
            flags += [flag, *map(str, value)]
        elif isinstance(value, dict):
            flags += [flag, json.dumps(value)]
        else:
            flags += [flag, str(value)]
    return flags


async def _line(stream: asyncio.StreamReader) -> bytes:
    """One line, or what comes of a very long one; b"" at the end."""
    try:
        return await stream.readuntil(b"\n")
    except asyncio.IncompleteReadError as exc:
        return exc.partial
    except asyncio.LimitOverrunError as exc:
        return await stream.readexactly(exc.consumed)
