"""What `[policies.<name>.trainer.critic]` means together with the trainer's other keys. Imports no torch.

Each check yields ConfigErrors that say how to fix it.
"""

from collections.abc import Iterator

from astraflow.config import TrainerSection
from astraflow.errors import ConfigError
from astraflow.learners.losses.presets import PRESETS
from astraflow.runfile.decode import Where


def check_critic(name: str, trainer: TrainerSection, where: Where) -> Iterator[ConfigError]:
    """What is wrong."""
    path, critic = ("policies", name, "trainer"), trainer.critic
    if critic is None:
        if trainer.advantage == "gae":
            problem = f"is gae, which needs a critic; add a table [{'.'.join(path)}.critic], or choose another"
            yield where.error((*path, "advantage"), problem)
        return
    if trainer.advantage != "gae":
        preset = PRESETS.get(trainer.loss.preset)
        from_preset = preset is not None and preset.trainer["advantage"] == trainer.advantage
        named = f" (from preset = {trainer.loss.preset})" if from_preset else ""
        yield where.error(
            (*path, "advantage"),
            f"is {trainer.advantage}{named}, and there is a critic: one of them would not be used; set advantage = gae"
            f" to use the critic, or remove [{'.'.join(path)}.critic]",
        )
    if "zero-advantage" in trainer.filters:
        yield where.error(
            (*path, "filters"),
            "has zero-advantage: advantages are the critic's, so it would see rewards and drop the groups that always"
            " fail, which teach a critic too; set filters = []",
        )
    if trainer.replay.kind == "prioritized":
        yield where.error(
            (*path, "replay", "kind"),
            "is prioritized, by advantages which only the critic knows; use uniform or latest",
        )
    yield from _check_warm_up(path, trainer, critic.warmup_steps, where)


def _check_warm_up(path: tuple[str, ...], trainer: TrainerSection, warm_up: int, where: Where) -> Iterator[ConfigError]:
    if warm_up >= trainer.steps:
        yield where.error(
            (*path, "critic", "warmup_steps"),
            f"is {warm_up}, not less than the {trainer.steps} steps of the run: the policy would never be trained",
        )
    elif warm_up + trainer.warmup_steps > trainer.steps:
        yield where.error(
            (*path, "warmup_steps"),
            f"is {trainer.warmup_steps} after the critic's {warm_up}, more than the {trainer.steps} steps of the run",
        )
