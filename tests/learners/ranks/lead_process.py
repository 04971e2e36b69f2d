"""A process that leads ranks, for tests that kill some: `python -m tests.learners.ranks.lead_process MODEL FOLDER SIZE`.

It writes a line to stdout whenever something is done: the followers' process ids, then what each line of stdin asked for.
"""

import sys
from pathlib import Path

from astraflow.config import RanksSection
from astraflow.learners.ranks.lead import RankedLearner
from tests.learners.learner_cases import batch, digest, section


def main(model: Path, folder: Path, size: int) -> None:
    one = section(ranks=RanksSection(data=size, silent_s=2.0))
    learner = RankedLearner(model, one, seed=3, threads=size, temperature=1.0, reference_folder=None)
    print(*(process.pid for process in learner._followers.values()), flush=True)
    for number, line in enumerate(sys.stdin):
        match line.strip():
            case "step":
                assert learner.step(batch(number)).trained
                print(digest(learner.export()), flush=True)
            case "steps":  # until it is killed
                print("on", flush=True)
                while True:
                    learner.step(batch(number))
            case "saves":
                print("on", flush=True)
                while True:
                    learner.save(folder)
            case "save":
                learner.save(folder)
                print("saved", flush=True)
            case "restore":
                learner.restore(folder)
                print(digest(learner.export()), flush=True)
            case "stop":
                learner.close()
                print("stopped", flush=True)
                return


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
