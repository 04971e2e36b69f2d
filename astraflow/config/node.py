"""How `up` uses a machine: [node]."""

from typing import Annotated, Literal

from msgspec import Struct

from astraflow.config.kinds import Fraction, doc


class NodeSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[node]: how `up` uses this machine."""

    threads: Annotated[int, doc("cores to use; 0 = all that this process may", ge=0)] = 0
    policy_threads: Annotated[int, doc("per policy process; 0 = a share", ge=0)] = 0
    trainer_threads: Annotated[int, doc("per trainer process; 0 = a share", ge=0)] = 0
    rollouts: Annotated[int, doc("rollout processes", ge=0)] = 1
    episodes_per_rollout: Annotated[int, doc("concurrent episodes in a rollout process", ge=1)] = 64
    blocked_s: Annotated[
        float, doc("code of yours may hold a rollout's event loop up for this long; then the process is replaced", gt=0)
    ] = 60.0
    eval_share: Annotated[
        Fraction, doc("part of them that evaluation may have while training tasks wait; when none does, it has all")
    ] = 0.25
    grace_s: Annotated[float, doc("time to drain before processes are killed", gt=0)] = 60.0
    preempt: Annotated[
        Literal["", "aws", "gcp", "azure"],
        doc("drain when the metadata service of this cloud says that the machine is taken away, within the time left"),
    ] = ""
    preempt_file: Annotated[str, doc("drain when this file appears: the machine is about to be taken away")] = ""
    preempt_command: Annotated[str, doc("drain when this shell command succeeds, e.g. curl of a metadata address")] = ""
    preempt_every_s: Annotated[float, doc("pause between two runs of preempt_command", gt=0)] = 5.0
    max_restarts: Annotated[int, doc("restarts of one actor in ten minutes before the run fails", ge=0)] = 10
