"""What a run came to: `summary.json`, and the same for people.

Pure: it is built from what the recorder has read; `seconds`, counts and digests are copied, not judged.
Times are unix seconds, `*_s` are durations in seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from astraflow.config import RunConfig
from astraflow.dataflow.ledger import ISSUED, RECORD_COUNTS, Fate
from astraflow.messages import Head, Ledger, Progress, RunRecord, is_goal
from astraflow.messages.metric_names import TRAIN_SAMPLES, TRAIN_STALENESS_MAX, TRAIN_STALENESS_MEAN, TRAIN_TOKENS
from astraflow.view.history import EpisodeTotals, EvalPoint, History, PolicyHistory
from astraflow.view.wording import amount, change, counts, duration

FAILED = "failed"  # a reason to stop: a process did, for good
_NOT_SKIPPED = RECORD_COUNTS | {ISSUED, Fate.EMITTED, Fate.OPEN, Fate.BUFFERED}


class _EvalSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A set's first and last evaluation; the same one if there was only one."""

    before: EvalPoint
    after: EvalPoint


class _PolicySummary(msgspec.Struct, frozen=True, kw_only=True):
    trainable: bool
    steps: int = 0  # optimizer steps done
    steps_planned: int = 0
    version: int = 0
    finished: bool = False
    seconds_to_first_step: float | None = None  # from the run's creation; None: no step yet
    generated_tokens: int = 0  # sampled, in recorded episodes, evaluation included
    trained_tokens: int = 0  # sampled tokens in the batches of the surviving lineage
    trained_tasks: int = 0
    trained_digest: str = ""  # sha256 hex over the sorted ids of the trained tasks, one a line
    staleness_mean: float | None = None  # steps
    staleness_max: float | None = None
    skipped_steps: int = 0
    eval: dict[str, _EvalSummary] = {}
    skipped: dict[str, int] = {}  # tasks by the reason why they were not trained
    ledger: dict[str, int] = {}  # every row, as dataflow counted; late, retried and unknown count records

    @property
    def data_ended(self) -> bool:
        """It finished before its steps: no more tasks were left to train on."""
        return self.finished and self.steps < self.steps_planned


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    run: str
    incarnation: str
    finished: bool
    stop_reason: str  # finished | stopped | drain | failed
    created_at: float
    ended_at: float
    wall_s: float  # ended_at - created_at, pauses between restarts included
    up_s: float  # of which the recorder was up
    seconds_to_first_step: float | None
    policies: dict[str, _PolicySummary]
    episodes: dict[str, int]  # by reason
    failure: str = ""  # of what process, and why, when that ended it


@dataclass(kw_only=True)
class BusFacts:
    """What only the bus knows, by policy."""

    progress: Mapping[str, Progress] = field(default_factory=dict)
    heads: Mapping[str, Head] = field(default_factory=dict)
    ledgers: Mapping[str, Ledger] = field(default_factory=dict)


def build_summary(
    config: RunConfig,
    record: RunRecord,
    *,
    history: History,
    totals: EpisodeTotals,
    facts: BusFacts,
    at: float,
    up_s: float,
    stop_reason: str,
    failure: str = "",
) -> Summary:
    """The run as of `at`. It is finished if it stopped because dataflow said so, not because of a signal.

    Args:
        failure: of a process, for which its node ended; "" = of none.
    """
    if stop_reason == "finished":
        failure = ""
    elif failure:
        stop_reason = FAILED
    policies = {}
    for name, section in config.policies.items():
        steps = section.trainer.steps if section.trainer else 0
        policy = _policy(name, steps, record.created_at, history.of(name), totals, facts)
        if stop_reason == "finished":  # the run has ended: so has a trainer that had no time to say so
            policy = msgspec.structs.replace(policy, finished=True)
        policies[name] = policy
    first_steps = [p.seconds_to_first_step for p in policies.values() if p.seconds_to_first_step is not None]
    return Summary(
        run=record.name,
        incarnation=record.incarnation,
        finished=stop_reason == "finished",
        stop_reason=stop_reason,
        created_at=record.created_at,
        ended_at=at,
        wall_s=round(at - record.created_at, 3),
        up_s=round(up_s, 3),
        seconds_to_first_step=min(first_steps, default=None),
        policies=policies,
        episodes=dict(sorted(totals.by_reason.items())),
        failure=failure,
    )


def _policy(
    name: str, planned: int, created_at: float, history: PolicyHistory, totals: EpisodeTotals, facts: BusFacts
) -> _PolicySummary:
    progress, head = facts.progress.get(name), facts.heads.get(name)
    counted = dict(facts.ledgers[name].counts) if name in facts.ledgers else {}
    trained = history.train.values()
    means = [value for _, value in history.series(TRAIN_STALENESS_MEAN)]
    evals = {}
    for set_name in sorted(history.evals):
        if points := history.first_and_last(set_name):
            evals[set_name] = _EvalSummary(before=points[0], after=points[1])
    return _PolicySummary(
        trainable=planned > 0,
        steps=progress.step if progress else max(history.train, default=0),
        steps_planned=planned,
        version=max(progress.version if progress else 0, head.version if head else 0),
        finished=progress.finished if progress else False,
        seconds_to_first_step=round(min(m.at for m in trained) - created_at, 3) if trained else None,
        generated_tokens=totals.generated_tokens.get(name, 0),
        trained_tokens=int(sum(m.values.get(TRAIN_TOKENS, 0) for m in trained)),
        trained_tasks=progress.trained_tasks if progress else 0,
        trained_digest=progress.trained_digest if progress else "",
        staleness_mean=sum(means) / len(means) if means else None,
        staleness_max=max((value for _, value in history.series(TRAIN_STALENESS_MAX)), default=None),
        # An empty last batch only says that there is no more to train.
        skipped_steps=sum(metrics.values.get(TRAIN_SAMPLES) != 0 for metrics in history.skipped.values()),
        eval=evals,
        skipped={reason: count for reason, count in counted.items() if count and reason not in _NOT_SKIPPED},
        ledger=counted,
    )


def encode_summary(summary: Summary) -> bytes:
    """The content of summary.json: indented JSON under stable keys."""
    return msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n"


def read_summary(path: Path) -> Summary | None:
    """What `encode_summary` wrote; None if there is no such file. Raises msgspec.MsgspecError if it is damaged."""
    return msgspec.json.decode(path.read_bytes(), type=Summary) if path.exists() else None


def render_summary(summary: Summary) -> str:
    """A few lines for people, without colours."""
    lines = [f"run {summary.run}: {_state(summary)} · {duration(summary.wall_s)}"]
    if summary.wall_s - summary.up_s > 60:
        lines[0] += f", {duration(summary.up_s)} of them running"
    if summary.seconds_to_first_step is not None:
        lines[0] += f" · first step after {duration(summary.seconds_to_first_step)}"
    for name, policy in summary.policies.items():
        lines += _policy_lines(name, policy)
    lines.append(f"  episodes    {counts(summary.episodes)}")
    return "\n".join(lines)


def _state(summary: Summary) -> str:
    if is_goal(summary.stop_reason):
        return summary.stop_reason
    if summary.finished:
        return "finished"
    if summary.failure:
        return f"failed, not finished: {summary.failure}"
    if is_goal(summary.stop_reason):
        return summary.stop_reason
    why = "" if summary.stop_reason == "stopped" else f" ({summary.stop_reason or 'unknown'})"
    return f"stopped{why}, not finished"


def _policy_lines(name: str, policy: _PolicySummary) -> list[str]:
    if not policy.trainable:
        return [f"{name}: frozen · {amount(policy.generated_tokens)} tokens generated"]
    lines = [
        f"{name}: {policy.steps} of {policy.steps_planned} steps · version {policy.version} · "
        f"{amount(policy.trained_tokens)} tokens trained, {amount(policy.generated_tokens)} generated"
    ]
    if policy.data_ended:
        lines.append("  ended early its sources have no more tasks")
    for set_name, points in policy.eval.items():
        once = points.before == points.after
        correct = change(points.before.correct, points.after.correct, once=once)
        reward = change(points.before.reward, points.after.reward, once=once)
        steps = f"{points.after.step}" if once else f"{points.before.step} → {points.after.step}"
        lines.append(
            f"  {set_name:<11} correct {correct}   reward {reward}   "
            f"(step {steps}, {points.after.size} answers"
            f"{f', {failed} failed' if (failed := points.after.failed) else ''})"
        )
        if points.after.pass_at:
            before = points.before.pass_at
            passes = [
                f"pass@{k} {change(before.get(k), value, once=once)}" for k, value in points.after.pass_at.items()
            ]
            lines.append(f"  {'':<11} {'   '.join(passes)}")
    if policy.staleness_mean is not None and policy.staleness_max is not None:
        lines.append(f"  staleness   mean {policy.staleness_mean:.2f}, max {policy.staleness_max:.0f} steps")
    if policy.trained_tasks:
        lines.append(f"  trained     {policy.trained_tasks:,} tasks, digest {policy.trained_digest[:12]}")
    lines.append(f"  not trained {counts(policy.skipped)}")
    records = {reason: policy.ledger.get(reason, 0) for reason in RECORD_COUNTS}
    if any(records.values()):
        lines.append(f"  records     {counts(records)}")
    if policy.skipped_steps:
        lines.append(f"  skipped     {policy.skipped_steps} optimizer steps (NaN, infinity or no tokens)")
    return lines
