"""Sandboxes need user namespaces, which some kernels and containers don't give."""

import shutil
import subprocess
from pathlib import Path

import pytest

SANDBOXED = [Path(__file__).with_name(name) for name in ("sandbox", "code")]


def _has_namespaces() -> bool:
    unshare = shutil.which("unshare")
    return unshare is None or subprocess.run([unshare, "--user", "true"], check=False).returncode == 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    concerned = [item for item in items if any(folder in item.path.parents for folder in SANDBOXED)]
    if concerned and not _has_namespaces():
        for item in concerned:
            item.add_marker(pytest.mark.skip(reason="this machine gives no user namespaces (`unshare --user true`)"))
