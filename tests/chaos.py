"""`make chaos`: toy runs under random faults, until the time is up or an invariant breaks.

    python tests/chaos.py --minutes 10 --seed 1 [--only server --only stop] [--keep]

Every round is a run of its own, of real processes over a finite list of tasks. While it trains, at random moments:

    kill      kill −9 of an actor: rollout, policy, dataflow, trainer, recorder
    stop      SIGSTOP of an actor, for less or more than its lease and its record live, then SIGCONT
    server    kill −9 of nats-server; it is started again on the same port
    messages  some seconds in which messages get lost, doubled and overtaken (faultproxy.py)
    cut       every connection ends at once
    node      another machine's node joins; the one that is there is killed
    up        kill −9 of `astraflow up` with all its processes, and `up` again

Each fault is a line. At the end the run must be as if nothing had happened (`FiniteRun.broken`): exit code 0, no
process left and no temporary file; and after every fault there must be a next step within RECOVERY_S. A round that
breaks one of these says which, with the seed that repeats it, and the exit code is 1.
"""

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.e2e.disturbed import WEIGHTS, BrokenError, Round


async def chaos(*, minutes: float, seed: int, only: list[str], keep: bool) -> int:
    """Rounds until the time is up; the exit code."""
    until, rounds, faults = time.monotonic() + 60 * minutes, 0, 0
    root = Path(tempfile.gettempdir())
    while rounds == 0 or time.monotonic() < until:
        folder = Path(tempfile.mkdtemp(prefix="astraflow-chaos-", dir=root))
        (folder / "tmp").mkdir()
        os.environ["TMPDIR"] = str(folder / "tmp")  # of the processes of the run
        each = Round(seed, folder, only)
        sys.stdout.write(f"round with seed {seed}: {each.run}\n")
        try:
            await each.play()
        except BrokenError as exc:
            again = f"python tests/chaos.py --minutes 0 --seed {seed}" + "".join(f" --only {o}" for o in only)
            each.say(f"BROKEN after {', '.join(each.faults) or 'no fault'}:\n{exc}\n{folder} is kept; `{again}`")
            return 1
        each.say(f"as if nothing had happened, after {len(each.faults)} faults")
        if not keep:
            shutil.rmtree(folder)
        rounds, faults, seed = rounds + 1, faults + len(each.faults), seed + 1
    sys.stdout.write(f"{rounds} rounds, {faults} faults, no invariant broken\n")
    return 0


def main() -> int:
    """Parse, run; the return value is the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="no new round after this; 0 = one round")
    parser.add_argument("--seed", type=int, default=1, help="of the first round; the next rounds count up")
    parser.add_argument("--only", action="append", default=[], choices=WEIGHTS, help="only faults of this kind")
    parser.add_argument("--keep", action="store_true", help="keep the folders of good rounds too")
    args = parser.parse_args()
    return asyncio.run(chaos(minutes=args.minutes, seed=args.seed, only=args.only, keep=args.keep))


if __name__ == "__main__":
    sys.exit(main())
