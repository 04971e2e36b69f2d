"""Build the learner that the run file names. Heavy imports happen here, when one is built."""

from pathlib import Path

from astraflow.config import TrainerSection
from astraflow.learners.base import Learner


def build_learner(
    section: TrainerSection,
    model_folder: Path,
    *,
    seed: int,
    threads: int,
    temperature: float = 1.0,
    reference_folder: Path | None = None,
) -> Learner:
    """The learner of `[policies.<name>.trainer].learner`, loaded and ready.

    Args:
        seed: of the run; only dithering uses it.
        threads: cores for the process.
        temperature: of `[policies.<name>.sampling]`: logprobs are compared at the temperature of sampling.
        reference_folder: the policy's model in the run file, which a KL is taken to; None: `model_folder`.

    Raises: ConfigError if a folder, or a loss of the user's own, can't be used.
    """
    if section.learner == "toy":
        from astraflow.learners.toy import ToyLearner

        return ToyLearner(model_folder, section)
    if section.ranks.size > 1:
        from astraflow.learners.ranks.lead import RankedLearner

        return RankedLearner(
            model_folder,
            section,
            seed=seed,
            threads=threads,
            temperature=temperature,
            reference_folder=reference_folder,
        )
    from astraflow.learners.torch_learner import TorchLearner

    return TorchLearner(
        model_folder, section, seed=seed, threads=threads, temperature=temperature, reference_folder=reference_folder
    )
