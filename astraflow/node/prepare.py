"""Prepares models before actors start: `python -m astraflow.node.prepare NAME…` prints {name: folder} as JSON.

A process of its own, so that torch, which a conversion loads, doesn't stay in the node's memory. Exit code 3 and the
last line on stderr: a mistake of the user.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from astraflow.actors.base.exits import EXIT_USER
from astraflow.errors import ConfigError, EngineError
from astraflow.node.threads import process_environment


async def prepare_models(names: Sequence[str], *, cores: int) -> dict[str, Path]:
    """The folder of each model, made if need be. Raises ConfigError (the model's fault) or EngineError (a crash)."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "astraflow.node.prepare",
        *names,
        env=process_environment(cores, base=os.environ),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    last = next(iter(errors.decode(errors="replace").strip().splitlines()[-1:]), "")
    if process.returncode == EXIT_USER:
        raise ConfigError(last)
    if process.returncode != 0:
        raise EngineError(f"preparing {', '.join(names)} failed: {last or f'exit code {process.returncode}'}")
    folders = msgspec.json.decode(output.splitlines()[-1], type=dict[str, str])
    return {name: Path(folder) for name, folder in folders.items()}


def main(names: Sequence[str]) -> int:
    """Resolve each name; the return value is the exit code."""
    from astraflow.models.resolve import resolve_model

    try:
        folders = {name: str(resolve_model(name)) for name in names}
    except ConfigError as exc:
        sys.stderr.write(f"{exc}\n")
        return EXIT_USER
    sys.stdout.write(msgspec.json.encode(folders).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
