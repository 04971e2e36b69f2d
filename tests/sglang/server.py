"""A real SGLang server on the CPU for the checks of its weight loader, and its HTTP routes in a few lines.

Needs `make sglang-cpu` (or ASTRAFLOW_SGLANG_PYTHON, the interpreter of a venv with SGLang).
"""

import base64
import io
import json
import os
import pickle
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.sglang.support import SERVERSIDE, as_bytes

ROOT = Path(__file__).parents[2]
START_LIMIT_S = 900.0  # 20 s on a quiet machine


def sglang_python() -> Path:
    """The interpreter that has SGLang."""
    return Path(os.environ.get("ASTRAFLOW_SGLANG_PYTHON", ROOT / ".venv-sglang/bin/python"))


@dataclass(frozen=True)
class Server:
    """Where it listens, and where its loader's replies go."""

    port: int
    folder: Path

    def ask(self, route: str, body: Mapping[str, Any] | None = None) -> Any:
        """The JSON answer of a POST. Raises: HTTPError."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{route}",
            json.dumps(body or {}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def load(self, function: str, tensors: Mapping[str, str | bytes]) -> dict[str, Any]:
        """What the custom loader replies."""
        named = [(name, as_bytes(content)) for name, content in tensors.items()]
        named.append(("reply", as_bytes(str(self.folder / "reply"))))
        payload = io.BytesIO()
        pickle.dump(named, payload)
        self.ask("/begin_weight_update", {"selector": "target"})
        self.ask(
            "/update_weights_from_tensor",
            {
                "serialized_named_tensors": [base64.b64encode(payload.getvalue()).decode()],
                "load_format": f"astraflow_sglang.{function}",
                "flush_cache": False,
                "selector": "target",
            },
        )
        self.ask("/end_weight_update")
        reply: dict[str, Any] = json.loads((self.folder / "reply.0").read_text())
        return reply

    def checksums(self) -> dict[str, Any]:
        """Of every parameter, by the server."""
        found: dict[str, Any] = self.ask("/weights_checker", {"action": "checksum"})["ranks"][0]["checksums"]
        return found


@contextmanager
def running_server(model: Path, folder: Path, dtype: str = "bfloat16") -> Iterator[Server]:
    """Started, answering, and ended at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sglang_python(), "-m", "sglang.launch_server", "--model-path", model, "--port", port, "--dtype", dtype]
    command += ["--host", "127.0.0.1", "--device", "cpu", "--attention-backend", "torch_native", "--sleep-on-idle"]
    command += ["--mem-fraction-static", "0.3", "--max-total-tokens", "4000", "--max-running-requests", "4"]
    command += ["--skip-tokenizer-init", "--skip-server-warmup"]
    command += ["--custom-weight-loader", "astraflow_sglang.apply_update", "astraflow_sglang.describe"]
    environment = os.environ | {"PYTHONPATH": str(SERVERSIDE), "SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1"}
    environment |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [str(each) for each in command], stdout=log, stderr=log, env=environment, cwd=folder, start_new_session=True
        )
    try:
        _wait(process, port, folder)
        yield Server(port, folder)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)


def _wait(process: "subprocess.Popen[bytes]", port: int, folder: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise AssertionError((folder / "server.log").read_text()[-4000:])
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/model_info", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)  # another program's start, over HTTP: there is nothing to wait on
    raise AssertionError(f"no server after {START_LIMIT_S} s: " + (folder / "server.log").read_text()[-4000:])
