"""The live view where there is no terminal: one line per step, evaluation, trouble and change of state. Pure."""

from astraflow.messages import Event, Member, Metrics
from astraflow.messages.metric_names import (
    DATAFLOW_CORRECT_ALL,
    DATAFLOW_FAILED_ALL,
    DATAFLOW_REWARD_ALL,
    LABEL_SET,
    TRAIN_REWARD_MEAN,
    TRAIN_SKIPPED,
    TRAIN_STALENESS_MAX,
    TRAIN_STALENESS_MEAN,
)
from astraflow.view.history import EvalPoint
from astraflow.view.run_view import RunView
from astraflow.view.wording import amount, duration, failures

_WAITS_TOLD = 2


def _stamp(view: RunView, at: float) -> str:
    """Time since the run was created, right-aligned: how every line begins."""
    return f"{duration(at - view.record.created_at) if view.record else '':>12}  "


def step_line(view: RunView, metrics: Metrics, *, seconds: float | None) -> str:
    """One optimizer step as one line of text. `seconds` since the policy's previous step; None if there was none."""
    policy, values = metrics.policy, metrics.values
    trainer = view.config.policies[policy].trainer if view.config else None
    parts = [f"{policy} step {metrics.step}" + (f"/{trainer.steps}" if trainer else "")]
    history = view.history.of(policy)
    of_batch = history.flow[metrics.batch].values if metrics.batch in history.flow else {}
    if (reward := of_batch.get(DATAFLOW_REWARD_ALL, values.get(TRAIN_REWARD_MEAN))) is not None:
        parts.append(f"reward {reward:.2f}{failures(of_batch.get(DATAFLOW_FAILED_ALL, 0))}")
    if (correct := of_batch.get(DATAFLOW_CORRECT_ALL)) is not None:
        parts.append(f"correct {correct:.2f}")
    elif held_out := _newest_correct(view, policy):
        parts.append(f"eval correct {held_out.correct:.2f}{failures(held_out.failed)} at step {held_out.step}")
    parts.append(f"version {metrics.version}")
    if TRAIN_STALENESS_MEAN in values:
        parts.append(f"staleness {values[TRAIN_STALENESS_MEAN]:.1f}/{values.get(TRAIN_STALENESS_MAX, 0):.0f}")
    if rate := round(view.tokens_per_s(policy)):
        parts.append(f"{amount(rate)} tokens/s")
    if seconds is not None:
        parts.append(duration(seconds))
    if values.get(TRAIN_SKIPPED):
        parts.append("SKIPPED")
    return _stamp(view, metrics.at) + " · ".join(parts)


def _newest_correct(view: RunView, policy: str) -> EvalPoint | None:
    points = [p for of_set in view.history.of(policy).evals.values() for p in of_set.values() if p.correct is not None]
    return max(points, key=lambda point: point.step, default=None)


def eval_line(view: RunView, metrics: Metrics) -> str:
    """One evaluation as one line of text."""
    set_name = metrics.labels.get(LABEL_SET, "")
    point = view.history.of(metrics.policy).evals[set_name][metrics.step]
    correct = f"correct {point.correct:.2f} · " if point.correct is not None else ""
    reward = f"reward {point.reward:.2f} · " if point.reward is not None else ""
    results = f"{correct}{reward}{point.size} answers{failures(point.failed)}"
    return f"{_stamp(view, metrics.at)}{metrics.policy} evaluation {set_name} at step {point.step} · {results}"


def event_line(view: RunView, event: Event) -> str:
    """A warning or an error as one line of text."""
    actor = f"{event.actor}: " if event.actor else ""
    return f"{_stamp(view, event.at)}{event.level} · {actor}{event.text}"


def silence_lines(view: RunView, *, at: float) -> list[str]:
    """How the run is, where nothing has happened for a while: how far it is and who waits for what, then problems."""
    steps = [
        f"{name} step {progress.step if (progress := view.progress.get(name)) else 0}/{policy.trainer.steps}"
        for name, policy in (view.config.policies.items() if view.config else ())
        if policy.trainer
    ]
    waits = [f"{wait.who} waits for {wait.waits_for} ({duration(at - wait.since)})" for wait in view.waits()]
    parts = [*steps, *(waits[:_WAITS_TOLD] or ["nobody waits"])]
    return [_stamp(view, at) + text for text in (" · ".join(parts), *(f"! {each}" for each in view.problems()))]


def member_line(view: RunView, member: Member, *, at: float) -> str:
    """A member's new state as one line of text; `at` is when it was seen, so that times don't run backwards."""
    return f"{_stamp(view, at)}{member.actor} is {member.state.value.replace('_', ' ')}"
