"""Files that only their owner may read."""

import os
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Write a file with mode 0600, whatever mode it had."""
    handle = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        os.fchmod(handle, 0o600)
        file.write(text)
