"""What the keys of `[policies.<name>.trainer.loss]` mean together. Imports no torch.

Each check yields ConfigErrors that say how to fix it. Whether a function of the user's own is there is seen when the
environments are built (`environments.py`).
"""

from collections.abc import Iterator

from astraflow.config import TrainerSection
from astraflow.config.loss import OBJECTIVES
from astraflow.errors import ConfigError
from astraflow.named import did_you_mean
from astraflow.runfile.decode import Where


def check_loss(name: str, trainer: TrainerSection, where: Where) -> Iterator[ConfigError]:
    """What is wrong."""
    loss, path = trainer.loss, ("policies", name, "trainer", "loss")
    own = ":" in loss.objective
    if loss.objective not in OBJECTIVES and not own:
        known = ", ".join(OBJECTIVES)
        hint = did_you_mean(loss.objective, OBJECTIVES)
        yield where.error(
            (*path, "objective"), f"is {loss.objective!r}, expected {known} or module:function of your own{hint}"
        )
    if loss.args and not own:
        yield where.error((*path, "args"), f"are for a function of your own, but objective is {loss.objective}")
    if loss.dual_clip and (loss.objective != "clip" or loss.dual_clip < 1.0 + loss.clip_high):
        yield where.error(
            (*path, "dual_clip"),
            f"is {loss.dual_clip:g}; it needs objective = clip and at least 1 + clip_high = {1 + loss.clip_high:g}",
        )
    if loss.ratio == "sequence" and (loss.objective in ("logprob", "cispo") or loss.m2_threshold):
        what = "m2_threshold looks at tokens" if loss.m2_threshold else f"{loss.objective} has no ratio of sequences"
        yield where.error((*path, "ratio"), f"is sequence, but {what}; set it to token")
    yield from _check_off_policy(trainer, path, where)
    if trainer.advantage == "reward" and "zero-advantage" in trainer.filters:
        yield where.error(
            ("policies", name, "trainer", "advantage"),
            "is reward, so the filter zero-advantage would drop the groups that always fail and keep those that always"
            " succeed; set filters = []",
        )


def _check_off_policy(trainer: TrainerSection, path: tuple[str, ...], where: Where) -> Iterator[ConfigError]:
    loss = trainer.loss
    if loss.correction != "none" and loss.proximal != "recompute":
        yield where.error(
            (*path, "correction"),
            f"is {loss.correction}: it weighs the learner's logprobs at the start of a batch against the engine's,"
            ' which needs proximal = "recompute"',
        )
    if loss.correction == "mask" and loss.correction_floor >= loss.correction_cap:
        yield where.error(
            (*path, "correction_floor"),
            f"is {loss.correction_floor:g}, not below correction_cap = {loss.correction_cap:g}; all would be masked",
        )
    if loss.m2_threshold and (loss.proximal != "behaviour" or loss.objective == "logprob"):
        yield where.error(
            (*path, "m2_threshold"),
            "bounds ratios to the engine's logprobs: set proximal = behaviour, and an objective other than logprob",
        )
    ratioless = loss.proximal == "recompute" and trainer.updates_per_batch == 1
    if ratioless and loss.correction == "none" and loss.objective != "logprob":
        yield where.error(
            (*path, "proximal"),
            "is recompute, but with updates_per_batch = 1 every ratio is then 1 and nothing is clipped or corrected;"
            " raise updates_per_batch or set a correction",
        )
