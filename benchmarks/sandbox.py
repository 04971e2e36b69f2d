"""Sandboxed programs per second, and the attacks that get through.

    python benchmarks/sandbox.py [--programs 200] [--threads 2]

Prints one line per figure. Exit code 1 if an attack got through.
"""

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the attacks are those of the tests

from astraflow.envs.sandbox import Limits, Sandbox
from tests.envs.sandbox.attacks import ATTACKS, limits_for


def main() -> int:
    """Measure; the return value is the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    sandbox = Sandbox(slots=args.threads, limits=Limits(wall_s=60))
    with ThreadPoolExecutor(args.threads) as pool:
        start = time.perf_counter()
        results = list(pool.map(sandbox.run, ["print(6 * 7)"] * args.programs))
        took_s = time.perf_counter() - start
    assert all(result.text == "42\n" for result in results)
    sys.stdout.write(f"programs_per_s={args.programs / took_s:.1f} threads={args.threads}\n")
    through = []
    for name, (program, endings) in ATTACKS.items():
        result = sandbox.run(program, limits=limits_for(endings))
        if b"WON" in result.stdout or result.status not in endings:
            through.append(name)
    sys.stdout.write(f"attacks={len(ATTACKS)} got_through={len(through)} {', '.join(through)}\n")
    return 1 if through else 0


if __name__ == "__main__":
    sys.exit(main())
