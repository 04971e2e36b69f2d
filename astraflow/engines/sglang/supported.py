"""Where SGLang is on this machine, and which versions of it this engine works with. Imports nothing of SGLang's."""

import asyncio
import importlib.util
import os
from pathlib import Path

from astraflow.config import SglangSection
from astraflow.errors import EngineError
from astraflow.extras import install_hint
from astraflow.paths import user_path

OLDEST, _BELOW = (0, 5, 23), (0, 6)  # the extra `sglang` and `make sglang` name the same range
_RANGE = "sglang>=0.5.23,<0.6"
ASK_WITHIN_S = 60.0
_DEFAULT_VENV = ".venv-sglang"
_ASK = "import importlib.metadata; print(importlib.metadata.version('sglang'))"


def find_python(section: SglangSection) -> Path:
    """The interpreter with SGLang. Raises EngineError if it isn't there."""
    python = user_path(section.python or os.environ.get("ASTRAFLOW_SGLANG_PYTHON") or f"{_DEFAULT_VENV}/bin/python")
    if not python.is_file():
        raise EngineError(
            f"there is no SGLang interpreter {python.absolute()}; make one with `make sglang` (or `make sglang-cpu` "
            "without a GPU), or name it: engine.sglang.python, or ASTRAFLOW_SGLANG_PYTHON"
        )
    return python.absolute()


def lacks_sglang(section: SglangSection) -> str:
    """Why this machine can't have such an engine; "" = nothing speaks against it. Nothing is imported or started."""
    missing = [name for name in ("aiohttp", "torch") if importlib.util.find_spec(name) is None]
    if missing:
        return f"{' and '.join(missing)} can't be imported here; {install_hint('sglang')}"
    if section.url:
        return ""
    try:
        find_python(section)
    except EngineError as exc:
        return str(exc)
    return ""


def check_version(version: str, where: str) -> None:
    """Raises EngineError for a version outside of the range."""
    parts: list[int] = []
    for part in version.split(".")[:3]:
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        parts.append(int(digits))
    if not OLDEST <= tuple(parts) < _BELOW:
        raise EngineError(f"{where} has SGLang {version}, AstraFlow works with {_RANGE}; `make sglang` installs it")


async def check_supported(python: Path) -> str:
    """The version of the SGLang that an interpreter imports. Raises EngineError: none, or one out of the range."""
    try:
        process = await asyncio.create_subprocess_exec(
            str(python), "-c", _ASK, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
    except OSError as exc:
        raise EngineError(f"{python} can't be run: {exc}") from exc
    try:
        async with asyncio.timeout(ASK_WITHIN_S):
            output, errors = await process.communicate()
    except TimeoutError as exc:
        raise EngineError(f"{python} did not say its SGLang's version within {ASK_WITHIN_S:g} s") from exc
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode != 0:
        last = errors.decode(errors="replace").strip().splitlines()[-1:]
        raise EngineError(
            f"{python} has no SGLang ({''.join(last)}); `make sglang` installs {_RANGE} into .venv-sglang"
        )
    version = output.decode().strip()
    check_version(version, str(python))
    return version
