"""The tasks that a decision stands for, and whom the episodes of an environment train.

It decides nothing. Invariant: equal decisions give equal tasks, in every process: ids, seeds and payloads; policies are
sorted.
"""

from collections.abc import Callable, Iterable
from typing import Any

from astraflow.config import RunConfig
from astraflow.messages import Decision, Task
from astraflow.messages.ids import keyed_seed, task_id

Payload = Callable[[str, int], dict[str, Any]]  # (env, index) → what the environment needs


def players_of(config: RunConfig, env: str) -> tuple[str, ...]:
    """Those that the environment's roles, or its own `policy` or `policies` argument, name; else all of the run's."""
    section = config.envs[env]
    named = set(section.roles.values())
    if not section.agent:  # an agent asks whom it will, whatever the environment by itself would do
        named |= {section.args.get("policy"), *section.args.get("policies", ())} & set(config.policies)
    return tuple(sorted(named or config.policies))


def trained_by(config: RunConfig, env: str) -> tuple[str, ...]:
    """The players that learn from it. Empty: such tasks take no credit and nothing is trained on them."""
    return tuple(name for name in players_of(config, env) if config.policies[name].trainer is not None)


def tasks_of(config: RunConfig, decision: Decision, env: str, members: Iterable[int], payload: Payload) -> list[Task]:
    """The tasks of these members of the decision's group, which is of environment `env`."""
    # Every round of an evaluation draws with the same seeds, so that rounds differ by their weights only.
    epoch = 0 if decision.eval_set else decision.epoch
    feeds = () if decision.eval_set else trained_by(config, env)
    payload_of_task = payload(env, decision.index)
    return [
        Task(
            **decision.ref(member=member, env=env, feeds=feeds),
            id=task_id(decision.group_id, member),
            payload=payload_of_task,
            seed=keyed_seed(config.run.seed, "task", decision.source, epoch, decision.index, member),
            min_versions=decision.min_versions,
            cohort_id=decision.cohort_id,
            cohort_size=decision.cohort_size,
            deadline_s=config.dataflow.task_deadline_s,
        )
        for member in members
    ]
