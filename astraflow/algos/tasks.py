"""The tasks that a decision stands for.

It decides nothing. Invariant: equal decisions give equal tasks, in every process: ids, seeds and payloads.
"""

from collections.abc import Callable, Iterable
from typing import Any

from astraflow.algos.feeds import feeds_of, players_of
from astraflow.algos.ids import keyed_seed, task_id
from astraflow.config import RunConfig
from astraflow.messages import Decision, Sampling, Task

Payload = Callable[[str, int], dict[str, Any]]  # (env, index) → what the environment needs


def tasks_of(config: RunConfig, decision: Decision, env: str, members: Iterable[int], payload: Payload) -> list[Task]:
    """The tasks of these members of the decision's group, which is of environment `env`."""
    sampling = _eval_sampling(config, decision.eval_set) if decision.eval_set else None
    # Every round of an evaluation draws with the same seeds, so that rounds differ by their weights only.
    epoch = 0 if decision.eval_set else decision.epoch
    what = payload(env, decision.index)
    return [
        Task(
            id=task_id(decision.group_id, member), group_id=decision.group_id, group_size=decision.group_size,
            member=member, source=decision.source, env=env, payload=what,
            seed=keyed_seed(config.run.seed, "task", decision.source, epoch, decision.index, member),
            attempt=decision.attempt, feeds=() if decision.eval_set else feeds_of(config, env), sampling=sampling,
            min_versions=decision.min_versions, cohort_id=decision.cohort_id, cohort_size=decision.cohort_size,
            eval_set=decision.eval_set, eval_round=decision.eval_round,
            deadline_s=config.dataflow.task_deadline_s,
        )
        for member in members
    ]  # fmt: skip


def _eval_sampling(config: RunConfig, eval_set: str) -> Sampling | None:
    """The evaluation's temperature in its policies' sampling; None if that is what they have anyway.

    A task has one sampling for all its policies: the first one's, with the longest budget of them all.
    """
    section = config.eval[eval_set]
    sections = [config.policies[policy].sampling for policy in players_of(config, section.env)]
    if all(each.temperature == section.temperature for each in sections):
        return None
    return Sampling(
        max_new_tokens=max(each.max_new_tokens for each in sections), temperature=section.temperature,
        top_k=sections[0].top_k, top_p=sections[0].top_p,
    )  # fmt: skip
