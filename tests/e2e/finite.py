"""A toy run over a finite list of tasks, and what must be true of it at its end, whatever was done to it."""

import json
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.processes import batches, trained_tasks

RECORDS = {"late", "retried", "unknown"}  # counts of records, not of tasks
BATCH_GROUPS = 2
RUN = """\
[run]
name = "{name}"
seed = 3

[policies.solver]
model = "toy"
engine = {{ kind = "toy", slots = 8, toy_step_s = {engine_step_s}, replicas = {replicas} }}
sampling = {{ max_new_tokens = {new_tokens} }}

[policies.solver.trainer]
learner = "toy"
steps = 10000
batch_groups = {batch_groups}
max_staleness = 1000
filters = {filters}
checkpoint_every = 3
full_every = 5
toy_step_s = {step_s}

[envs.game]
kind = "toy"
args = {{ size = {groups}, turns = 2, flat_share = {flat}, fail_every = {fail} }}

[sources.game]
env = "game"
group_size = {members}
epochs = 1

[dataflow]
snapshot_every_s = 0.5
task_deadline_s = 120
max_attempts = 1000
standbys = {standbys}

[bus]
ack_wait_s = 1
answer_s = 0.5
lease_s = 2
member_ttl_s = 2
silence_s = 2

[node]
episodes_per_rollout = 8
rollouts = {rollouts}
max_restarts = 1000

[record]
curve = false
"""


@dataclass(frozen=True, kw_only=True)
class FiniteRun:
    """What the run is made of. Each task ends once: staleness and attempts are never what ends it."""

    name: str
    groups: int  # full batches of them
    members: int = 4
    filtered: bool = False  # with groups that are filtered and tasks that fail
    step_s: float = 0.1  # of the trainer
    engine_step_s: float = 0.005
    new_tokens: int = 24
    replicas: int = 1
    rollouts: int = 1
    standbys: int = 0

    def text(self) -> str:
        """The run file."""
        return RUN.format(
            name=self.name,
            groups=self.groups,
            members=self.members,
            step_s=self.step_s,
            batch_groups=BATCH_GROUPS,
            engine_step_s=self.engine_step_s,
            new_tokens=self.new_tokens,
            replicas=self.replicas,
            rollouts=self.rollouts,
            standbys=self.standbys,
            filters='["zero-advantage"]' if self.filtered else "[]",
            flat=0.4 if self.filtered else 0.0,
            fail=13 if self.filtered else 0,
        )

    def broken(self, folder: Path) -> list[str]:
        """Sentences on what isn't as in an undisturbed run, of a run folder whose run has finished."""
        summary = json.loads((folder / "summary.json").read_text())
        trained, numbers = trained_tasks(folder), batches(folder)
        ledger = summary["policies"]["solver"]["ledger"]
        found = [f"task {task} was trained {count} times" for task, count in trained.items() if count != 1]
        if not summary["finished"]:
            found.append("summary.json says that the run isn't finished")
        if numbers != list(range(1, len(numbers) + 1)):
            found.append(f"trained batches are {numbers}")
        issued = self.groups * self.members
        ended = sum(count for reason, count in ledger.items() if reason not in {"issued", *RECORDS})
        if not ledger["issued"] == ended == issued:
            found.append(f"{issued} tasks, but the ledger has {ended} ends: {ledger}")
        if ledger["open"] or ledger["buffered"] or ledger["emitted"] != trained.total():
            found.append(f"{trained.total()} tasks were trained, but the ledger says {ledger}")
        if summary["policies"]["solver"]["trained_tasks"] != trained.total():
            found.append(f"{trained.total()} tasks were trained, but the summary says {summary['policies']['solver']}")
        if not self.filtered:
            if len(numbers) != self.groups // BATCH_GROUPS:
                found.append(f"{self.groups} groups were trained in {len(numbers)} batches")
            every = {f"game/0/{index}/{member}" for index in range(self.groups) for member in range(self.members)}
            if missing := sorted(every - trained.keys()):
                found.append(f"{len(missing)} tasks were never trained: {', '.join(missing[:5])}; ledger {ledger}")
        return found
