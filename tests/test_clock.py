"""The one clock: everything in the package reads it, and it can be replaced."""

import re
import threading
from pathlib import Path

import astraflow
from astraflow import clock

PACKAGE = Path(astraflow.__file__).parent
ALONE = (  # the latter two run inside SGLang's server, and inside a sandbox
    PACKAGE / "clock.py",
    PACKAGE / "engines" / "sglang" / "serverside",
    PACKAGE / "envs" / "code" / "inside_checker.py",
)
READS = re.compile(
    r"\btime\.(time|monotonic|perf_counter|process_time|thread_time|clock_gettime|sleep)|\bgmtime\(\)|\blocaltime\(\)"
    r"|\btime\.strftime\([^,()]*\)|datetime\.(now|utcnow|today)\b|date\.today\b|from time import"
)


class Stopped:
    """A clock that stands still."""

    def monotonic(self) -> float:
        return 7.0

    def boottime(self) -> float:
        return 8.0

    def wall(self) -> float:
        return 9.0

    def sleep(self, seconds: float) -> None:
        return None


def test_nothing_else_in_the_package_reads_the_time() -> None:
    files = [path for path in PACKAGE.rglob("*.py") if not any(path.is_relative_to(alone) for alone in ALONE)]
    found = [
        f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if READS.search(line)
    ]
    assert found == []
    assert len(files) > 300, "the package was looked at"


def test_an_installed_clock_is_read_by_every_thread_until_the_block_ends() -> None:
    seen: list[float] = []
    with clock.installed(Stopped()):
        thread = threading.Thread(target=lambda: seen.extend([clock.monotonic(), clock.boottime(), clock.wall()]))
        thread.start()
        thread.join()
    assert seen == [7.0, 8.0, 9.0]
    assert clock.monotonic() != 7.0
    assert clock.wall() > 1.7e9


def test_a_sleeping_machine_is_not_part_of_monotonic_time_but_of_boottime() -> None:
    assert clock.boottime() >= clock.monotonic() - 1e-3
