"""Which tasks of a source are worth a rollout, by the names used in `[sources.<name>.select].kind`.

accept_all     every task is tried every time
base           what a selector sees and answers
curriculum     tasks of the right difficulty first
difficulty     how often each task succeeded lately, for selectors that go by it
filter_solved  tasks that the policy solves every time are left out for good
greso          GRESO
levels         an environment with levels is climbed
pools          difficulty pools
"""

from astraflow.dataflow.select.base import SELECTS, GroupResult, Prompt, Select

__all__ = ["SELECTS", "GroupResult", "Prompt", "Select"]
