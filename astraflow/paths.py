"""Paths as people write them."""

import os
from pathlib import Path


def user_path(text: str | Path) -> Path:
    """The path with a leading ~ or ~user expanded, on the machine that uses it; shells do that only for bare words.

    Of a user whom this machine doesn't know it stays as it is, and so is missing.
    """
    return Path(os.path.expanduser(text))  # Path.expanduser raises for such a user


def user_path_text(text: str | Path) -> str:
    """Likewise as text; "" = no path."""
    return str(user_path(text)) if text else ""
