"""Files that survive a power cut once the call returns. Not here: temporary names and renames."""

import os
from pathlib import Path


def write_durably(path: Path, data: bytes | memoryview) -> None:
    """Write a file and fsync it and its folder. Raises OSError if it can't be written."""
    path.write_bytes(data)
    sync(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """fsync a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
