"""A process that leads ranks, for tests that kill some of them. Arguments: model and state folder, silent_s.

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


def main(model: Path, folder: Path, silent_s: float) -> None:
    one = section(ranks=RanksSection(data=2, settle_s=600, silent_s=silent_s))
    learner = RankedLearner(model, one, seed=3, threads=2, temperature=1.0, reference_folder=None)
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
    main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))
