"""Goals that end a run: what they are held against, and what `check` says of those that can never be met."""

import math

import msgspec
import pytest

from astraflow.config import EvalSection, PolicySection, RunConfig, RunSection, TrainerSection
from astraflow.dataflow.stop_rule import stop_rule
from astraflow.errors import ConfigError
from astraflow.messages.metric_names import DATAFLOW, EVAL
from tests.actors.run_in_progress import CONFIG


def ruled(text: str, base: RunConfig = CONFIG) -> RunConfig:
    with_eval = msgspec.structs.replace(base, eval={"held-out": EvalSection(env="sums", size=4)})
    return msgspec.structs.replace(with_eval, run=RunSection(name="demo", stop_when=text))


@pytest.mark.parametrize(
    ("comparison", "value", "met"),
    [
        (">", 0.96, True),
        (">", 0.95, False),
        (">=", 0.95, True),
        ("<", 0.94, True),
        ("<=", 0.951, False),
        (">", math.nan, False),
        ("<", math.nan, False),
        (">", math.inf, True),
    ],
)
def test_a_goal_is_reached_by_its_comparison_and_never_by_nan(comparison: str, value: float, met: bool) -> None:
    rule = stop_rule(ruled(f"eval.held-out.correct of solver {comparison} 0.95"))
    assert rule is not None
    assert bool(rule.reached(EVAL, "solver", {"eval.correct": value}, {"set": "held-out"})) is met


def test_a_goal_is_told_with_its_value_and_only_of_what_it_names() -> None:
    rule = stop_rule(ruled("eval.held-out.correct of solver>0.5"))
    assert rule is not None
    values = {"eval.correct": 0.75}
    assert rule.reached(EVAL, "solver", values, {"set": "held-out"}) == "eval.held-out.correct of solver is 0.75, > 0.5"
    assert not rule.reached(EVAL, "solver", values, {"set": "other"})
    assert not rule.reached(EVAL, "judge", values, {"set": "held-out"})
    assert not rule.reached(EVAL, "solver", {"eval.reward": 1.0}, {"set": "held-out"})
    assert not rule.reached(DATAFLOW, "solver", values, {})


def test_the_only_trained_policy_need_not_be_named_for_what_its_batches_tell() -> None:
    rule = stop_rule(ruled("dataflow.reward_all >= 1"))
    assert rule is not None
    assert rule.reached(DATAFLOW, "solver", {"dataflow.reward_all": 1.0}, {}) == (
        "dataflow.reward_all of solver is 1, >= 1"
    )


@pytest.mark.parametrize("text", ["", "  "])
def test_no_goal(text: str) -> None:
    assert stop_rule(ruled(text)) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("eval.held-out.correct", "isn't a metric, a comparison"),
        ("eval.held-out.correct > 0.5 > 0.4", "isn't a metric, a comparison"),
        ("eval.held-out.correct == 1", "isn't a metric, a comparison"),
        ("eval.held-out.correct of solver > much", "'much' in .* isn't a number"),
        ("eval.held-out.correct of solver > nan", "isn't a number"),
        ("eval.held-out.correct of solver > inf", "isn't a number"),
        ("eval.heldout.correct of solver > 1", "no .eval.heldout.; did you mean 'held-out'"),
        ("eval.held-out.corect of solver > 1", "no metric 'corect'; did you mean 'correct'"),
        ("eval.held-out of solver > 1", "no metric ''"),
        ("eval > 1", "there is no .eval"),
        ("evel.held-out.correct > 1", "did you mean 'eval'"),
        ("train.loss < 1", "isn't a metric that a run can stop at"),
        ("eval.held-out.correct of slover > 1", "no policy 'slover'; did you mean 'solver'"),
        ("dataflow.reward_al > 1", "no metric 'reward_al'; did you mean 'reward_all'"),
        ("dataflow.reward_all of judge > 1", "no policy 'judge'"),
    ],
)
def test_a_goal_that_can_never_be_met_is_refused_with_what_was_meant(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        stop_rule(ruled(text))


def test_of_several_trained_policies_one_must_be_named() -> None:
    policies = {name: PolicySection(model="toy", trainer=TrainerSection(steps=9)) for name in ("solver", "judge")}
    with pytest.raises(ConfigError, match=r"say which policy.*solver, judge"):
        stop_rule(ruled("dataflow.reward_all > 1", msgspec.structs.replace(CONFIG, policies=policies)))
