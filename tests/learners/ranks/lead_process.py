"""A process that leads ranks, for tests that kill some of them. Arguments: model folder, state folder, ranks.

It writes a line to stdout whenever something is done: its followers' process ids, then what a line of stdin asks for.
"""

import sys
from pathlib import Path

from astraflow.config import RanksSection
from astraflow.learners.ranks.lead import RankedLearner
from tests.learners.learner_cases import batch, digest, section


def tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(model: Path, folder: Path, size: int) -> None:
    one = section(ranks=RanksSection(data=size, silent_s=2.0))
    learner = RankedLearner(model, one, seed=3, threads=size, temperature=1.0, reference_folder=None)
    tell(" ".join(str(process.pid) for process in learner._followers.values()))
    for number, line in enumerate(sys.stdin):
        match line.strip():
            case "step":
                assert learner.step(batch(number)).trained
                tell(digest(learner.export()))
            case "steps":  # until it is killed
                tell("on")
                while True:
                    learner.step(batch(number))
            case "saves":
                tell("on")
                while True:
                    learner.save(folder)
            case "save":
                learner.save(folder)
                tell("saved")
            case "restore":
                learner.restore(folder)
                tell(digest(learner.export()))
            case "stop":
                learner.close()
                tell("stopped")
                return


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
