"""Which SGLang versions this engine works with, and how one is asked for its version."""

import asyncio
from pathlib import Path

from astraflow.errors import EngineError

OLDEST, BELOW = (0, 5, 23), (0, 6)  # the extra `sglang` and `make sglang` name the same range
RANGE = "sglang>=0.5.23,<0.6"
ASK_WITHIN_S = 60.0
_ASK = "import importlib.metadata; print(importlib.metadata.version('sglang'))"


def check_version(version: str, where: str) -> None:
    """Raises EngineError for a version outside of the range."""
    parts: list[int] = []
    for part in version.split(".")[:3]:
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        parts.append(int(digits))
    if not OLDEST <= tuple(parts) < BELOW:
        raise EngineError(f"{where} has SGLang {version}, AstraFlow works with {RANGE}; `make sglang` installs it")


async def check_supported(python: Path) -> str:
    """The version of the SGLang that an interpreter imports. Raises EngineError: none, or one out of the range."""
    process = await asyncio.create_subprocess_exec(
        str(python), "-c", _ASK, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(ASK_WITHIN_S):
        output, errors = await process.communicate()
    if process.returncode != 0:
        last = errors.decode(errors="replace").strip().splitlines()[-1:]
        raise EngineError(f"{python} has no SGLang ({''.join(last)}); `make sglang` installs {RANGE} into .venv-sglang")
    version = output.decode().strip()
    check_version(version, str(python))
    return version
