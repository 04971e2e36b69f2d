"""The learning rate of each step: warm-up, then constant or falling towards the run's last step.

Not here: who counts steps, and what a rate is applied to (`torch_learner.py`). Pure: equal arguments, equal rate; so a
resumed run goes on where it was, and a run that is given more steps falls more slowly from then on.
Invariant: every step of `trainer.steps` has a rate above 0 if `learning_rate` is.
"""

import math

from astraflow.config import TrainerSection


def scheduled_rate(section: TrainerSection, steps_done: int) -> float:
    """Of the step after `steps_done`; 0 while a critic warms up alone.

    It rises linearly to `learning_rate`, which the last warm-up step has. Of the N steps after it the first has
    `learning_rate` too, and step i (0, 1, …) the share 1 − i/N (linear) or (1 + cos πi/N)/2 (cosine). A step beyond
    `steps` has the rate of the last one.
    """
    alone = section.critic.warmup_steps if section.critic is not None else 0
    done = steps_done - alone
    if done < 0:
        return 0.0
    if done < section.warmup_steps:
        return section.learning_rate * ((done + 1) / section.warmup_steps)
    if section.schedule == "constant":
        return section.learning_rate
    falling = max(1, section.steps - alone - section.warmup_steps)
    progress = min(done - section.warmup_steps, falling - 1) / falling
    share = 1.0 - progress if section.schedule == "linear" else (1.0 + math.cos(math.pi * progress)) / 2
    return section.learning_rate * share
