"""A disk that fills up under a whole run: said at once, nothing crashes, and with room again the run goes on."""

import os
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.toyrun import ENDED_EARLY, ENDLESS, finished, sets, started, write_toy
from tests.e2e.liverun import QUICK
from tests.e2e.processes import batches
from tests.support import eventually


class SmallDisk:
    """A file system of its own whose size can change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self._mount("size=600m")

    def fill(self) -> None:
        """Leave room for a few messages."""
        usage = os.statvfs(self.path)
        used = (usage.f_blocks - usage.f_bfree) * usage.f_frsize
        self._mount(f"remount,size={used // 1024 + 300}k")

    def free(self) -> None:
        self._mount("remount,size=600m")

    def end(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.path)], check=False)

    def _mount(self, options: str) -> None:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"needs the right to mount: {done.stderr.strip()}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    small = SmallDisk(tmp_path / "disk")
    yield small
    small.end()


@pytest.mark.slow
async def test_a_run_outlives_a_full_disk(disk: SmallDisk) -> None:
    write_toy(disk.path)
    async with started(disk.path, "up", "run.toml", *sets(*ENDLESS, *QUICK)) as up:
        await up.expect("solver step 5/")
        disk.fill()
        await up.expect("is full: nats-server stores nothing and the run waits; free at least 64 MiB")

        async def status() -> str:
            code, output = await finished(disk.path, "status")
            assert code == 0, output
            return output

        async def status_says_so() -> bool:
            return "!  nats-server stores nothing: " in await status()

        await eventually(status_says_so)
        disk.free()
        await up.expect("there is room again: starting nats-server anew")
        for _ in range(5):
            await up.expect("solver step ")
        await eventually(lambda: _all_is_well(status))
        up.process.terminate()
        assert await up.end() == ENDED_EARLY, up.output
        assert "ended with exit code" not in up.output  # no actor crashed
    trained = batches(disk.path / "runs/demo")
    assert trained == list(range(1, len(trained) + 1))


async def _all_is_well(status: Callable[[], Awaitable[str]]) -> bool:
    return "  !  " not in await status()
