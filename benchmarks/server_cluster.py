"""How long a run stands still when a server of a cluster of three is lost, one after another.

    .venv/bin/python benchmarks/server_cluster.py                  # each killed twice, 5 s after the last is back
    .venv/bin/python benchmarks/server_cluster.py --calm-s 0       # the next at once
    .venv/bin/python benchmarks/server_cluster.py --freeze         # SIGSTOP, as if its cable were pulled
    .venv/bin/python benchmarks/server_cluster.py --json

Three nats-servers and one `astraflow up` with toy actors on this machine, about seven steps a second. A server stays
away until eight more steps are trained. "Longest": the longest time between two trained steps from the loss on.
"""

import argparse
import asyncio
import itertools
import json
import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.cli.toyrun import Command, sets, started
from tests.e2e.finite import FiniteRun
from tests.servers import TOKEN, cluster_of, options_of
from tests.support import eventually, kill

STEPS_WITHOUT_IT = 8
STEP = re.compile(r"solver step (\d+)/\d+ · reward")


class Steps:
    """When each step of a run was trained."""

    def __init__(self) -> None:
        self.at_s: list[float] = []

    async def read(self, command: Command) -> None:
        """Until its output ends."""
        assert command.process.stdout is not None
        while line := (await command.process.stdout.readline()).decode():
            if STEP.search(line):
                self.at_s.append(time.monotonic())

    def longest_s(self, since: int) -> float:
        """The longest pause behind step number `since`."""
        times = self.at_s[since - 1 :]
        return max(after - before for before, after in itertools.pairwise(times))


async def measure(folder: Path, *, losses: int, calm_s: float, freeze: bool) -> list[dict[str, Any]]:
    """A row per loss."""
    rows, steps = [], Steps()
    async with cluster_of(folder) as servers:
        (folder / "run.toml").write_text(FiniteRun(name="demo", groups=100_000).text())
        (folder / "token").write_text(TOKEN)
        at = sets(f'bus.url="{options_of(servers).url}"', 'bus.token_file="token"')
        async with started(folder, "up", "run.toml", *at) as command, asyncio.TaskGroup() as group:
            reading = group.create_task(steps.read(command))
            await eventually(lambda: len(steps.at_s) > STEPS_WITHOUT_IT)
            for number in range(losses):
                server, before = servers[number % 3], len(steps.at_s)
                if freeze:
                    os.kill(server.pid, signal.SIGSTOP)
                else:
                    await kill(server)
                await eventually(lambda before=before: len(steps.at_s) > before + STEPS_WITHOUT_IT, within_s=300)
                rows.append({"server": number % 3, "longest_s": round(steps.longest_s(before), 1)})
                if freeze:
                    os.kill(server.pid, signal.SIGCONT)
                else:
                    await server.start()
                await asyncio.sleep(calm_s)
            command.process.kill()
            reading.cancel()
    return rows


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--losses", type=int, default=6)
    parser.add_argument("--calm-s", type=float, default=5.0)
    parser.add_argument("--freeze", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(measure(Path(folder), losses=args.losses, calm_s=args.calm_s, freeze=args.freeze))
    if args.json:
        sys.stdout.write(json.dumps(rows) + "\n")
    else:
        how = "frozen" if args.freeze else "killed"
        for row in rows:
            sys.stdout.write(f"server {row['server']} {how}: longest pause between two steps {row['longest_s']} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
