"""The tasks that a decision stands for.

It decides nothing. Invariant: equal decisions give equal tasks, in every process: ids, seeds and payloads.
"""

from collections.abc import Callable, Iterable
from typing import Any

from astraflow.config import RunConfig
from astraflow.dataflow.trained_by import feeds_of
from astraflow.messages import Decision, Task
from astraflow.messages.ids import keyed_seed, task_id

Payload = Callable[[str, int], dict[str, Any]]  # (env, index) → what the environment needs


def tasks_of(config: RunConfig, decision: Decision, env: str, members: Iterable[int], payload: Payload) -> list[Task]:
    """The tasks of these members of the decision's group, which is of environment `env`."""
    # Every round of an evaluation draws with the same seeds, so that rounds differ by their weights only.
    epoch = 0 if decision.eval_set else decision.epoch
    what = payload(env, decision.index)
    return [
        Task(
            id=task_id(decision.group_id, member), group_id=decision.group_id, group_size=decision.group_size,
            member=member, source=decision.source, env=env, payload=what,
            seed=keyed_seed(config.run.seed, "task", decision.source, epoch, decision.index, member),
            attempt=decision.attempt, feeds=() if decision.eval_set else feeds_of(config, env),
            min_versions=decision.min_versions, cohort_id=decision.cohort_id, cohort_size=decision.cohort_size,
            eval_set=decision.eval_set, eval_round=decision.eval_round,
            deadline_s=config.dataflow.task_deadline_s,
        )
        for member in members
    ]  # fmt: skip
