"""`[run] stop_when`: a goal that ends the run, e.g. `eval.held-out.correct of solver > 0.95`. Pure.

It is held against what dataflow itself reports, evaluations and its figures on each batch, so whether and when the run
ends doesn't depend on who else is there.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping

from msgspec import Struct

from astraflow.config import RunConfig
from astraflow.dataflow.tasks import players_of
from astraflow.errors import ConfigError
from astraflow.messages.metric_names import DATAFLOW, EVAL, LABEL_SET, TABLE, known
from astraflow.named import did_you_mean, nearest

_FORM = re.compile(r"\s*(\S+?)(?:\s+of\s+(\S+?))?\s*(>=|<=|>|<)\s*(\S+)\s*")
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_EXAMPLE = '"eval.held-out.correct > 0.95" or "dataflow.reward_all of solver > 0.9"'


class StopRule(Struct, frozen=True, kw_only=True):
    """One comparison of one metric of one policy."""

    name: str  # of the metric, as the run file has it
    kind: str
    metric: str  # its name in `Metrics.values`
    eval_set: str  # "" = of no evaluation
    policy: str
    comparison: str
    bound: float

    def reached(self, kind: str, policy: str, values: Mapping[str, float], labels: Mapping[str, str]) -> str:
        """A sentence with the value if this message reaches the goal, else ""."""
        value = values.get(self.metric, math.nan)
        if (kind, policy, labels.get(LABEL_SET, "")) != (self.kind, self.policy, self.eval_set):
            return ""
        if not _COMPARE[self.comparison](value, self.bound):  # nan reaches nothing
            return ""
        return f"{self.name} of {self.policy} is {value:.4g}, {self.comparison} {self.bound:.4g}"


def stop_rule(config: RunConfig) -> StopRule | None:
    """The run's; None = it has none. Raises ConfigError, with the nearest name, for what can never be met."""
    text = config.run.stop_when
    if not text.strip():
        return None
    found = _FORM.fullmatch(text)
    if found is None:
        raise ConfigError(f"{text!r} isn't a metric, a comparison (> >= < <=) and a number, as {_EXAMPLE}")
    name, policy, comparison, number = found.groups()
    kind, eval_set, metric = _metric(name, config)
    try:
        bound = float(number)
    except ValueError:
        bound = math.nan
    if not math.isfinite(bound):
        raise ConfigError(f"{number!r} in {text!r} isn't a number")
    return StopRule(
        name=name,
        kind=kind,
        metric=metric,
        eval_set=eval_set,
        policy=_policy(policy or "", eval_set, config),
        comparison=comparison,
        bound=bound,
    )


def _metric(name: str, config: RunConfig) -> tuple[str, str, str]:
    """Kind, evaluation and name in the metrics table of what the rule names."""
    kind, _, rest = name.partition(".")
    if kind not in (EVAL, DATAFLOW):
        hint = did_you_mean(kind, (EVAL, DATAFLOW))
        raise ConfigError(f"{name!r} isn't a metric that a run can stop at: eval.<evaluation>.… or dataflow.…{hint}")
    eval_set = ""
    if kind == EVAL:
        eval_set, _, rest = rest.partition(".")
        if eval_set not in config.eval:
            raise ConfigError(f"there is no [eval.{eval_set}]{nearest(eval_set, config.eval)}")
    metric = f"{kind}.{rest}"
    if not known(metric):
        names = [each.removeprefix(f"{kind}.") for each, info in TABLE.items() if info.kind == kind]
        raise ConfigError(f"{kind} has no metric {rest!r}{nearest(rest, names)}")
    return kind, eval_set, metric


def _policy(name: str, eval_set: str, config: RunConfig) -> str:
    """Whose metric it is: the one named, or the only one that can be meant."""
    if eval_set:
        meant = tuple(players_of(config, config.eval[eval_set].env))
        whose = f"evaluation {eval_set} asks"
    else:
        meant = tuple(each for each, section in config.policies.items() if section.trainer)
        whose = "batches are made for"
    if name and name not in meant:
        raise ConfigError(f"{whose} no policy {name!r}{nearest(name, meant)}")
    if not name and len(meant) != 1:
        raise ConfigError(f"say which policy, as in {_EXAMPLE}: {whose} {', '.join(meant) or 'none'}")
    return name or meant[0]
