"""Evaluate models without a run: a server, replicas and rollouts of their own in a folder that goes away.

It is `up` on a run that has nothing but evaluations, so models answer here as they do in training. Invariant: nothing
is left behind, whatever happens.
"""

import io
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.console import Console

from astraflow.config import EXTERNAL, SESSIONS, RunConfig, WeightsSection
from astraflow.errors import ConfigError, EngineError
from astraflow.messages import Metrics
from astraflow.messages.metric_names import EVAL
from astraflow.named import nearest
from astraflow.node.up import UpOptions, up
from astraflow.view.jsonl_lines import read_episodes, read_metrics


class _Evaluated(NamedTuple):
    """What came out."""

    scores: list[Metrics]  # of kind eval, by set and policy
    failures: list[str]  # why attempts failed


def evaluation_of(config: RunConfig, models: dict[str, str], sets: Sequence[str] = ()) -> RunConfig:
    """The run that only evaluates: no trainer, no source, no other machine.

    Args:
        models: by policy, a model to take instead of the run file's.
        sets: names in [eval]; none = all.
    Raises: ConfigError if there is nothing to evaluate here.
    """
    wanted = {name: section for name, section in config.eval.items() if not sets or name in sets}
    if missing := set(sets) - set(wanted):
        raise ConfigError(f"there is no [eval.{min(missing)}]{nearest(min(missing), config.eval)}")
    if not wanted:
        raise ConfigError("the run file has no [eval.<name>]: nothing to evaluate")
    for name, section in wanted.items():
        if config.envs[section.env].agent in (EXTERNAL, SESSIONS):
            raise ConfigError(f"[eval.{name}] is played by agents that join, and nobody can join an evaluation")
    policies = {
        name: msgspec.structs.replace(
            policy, model=models.get(name, policy.model), trainer=None, weights=WeightsSection()
        )
        for name, policy in config.policies.items()
    }
    bus = msgspec.structs.replace(
        config.bus, url="", token_file="", credentials_file="", credentials_dir="", ca_file="", region="local"
    )
    return msgspec.structs.replace(
        config,
        policies=policies,
        sources={},
        eval=wanted,
        dataflow=msgspec.structs.replace(config.dataflow, standbys=0),
        bus=bus,
        node=msgspec.structs.replace(config.node, preempt_file="", preempt_command=""),
    )


async def evaluate(config: RunConfig) -> _Evaluated:
    """Play every set once. Raises EngineError, with what was said, if that can't be; KeyboardInterrupt."""
    said = Console(file=io.StringIO(), width=200)
    with tempfile.TemporaryDirectory(prefix="astraflow-eval-", ignore_cleanup_errors=True) as folder:
        run = msgspec.structs.replace(config.run, folder=folder)
        code = await up(msgspec.structs.replace(config, run=run), UpOptions(command="astraflow eval"), said)
        if code == 130:
            raise KeyboardInterrupt
        files = Path(folder) / run.name
        scores = [each for each in read_metrics(files / "metrics.jsonl") if each.kind == EVAL]
        episodes = list(read_episodes(files / "episodes.jsonl"))
    if code or len(scores) == 0:
        assert isinstance(said.file, io.StringIO)
        raise EngineError(f"the evaluation failed:\n{said.file.getvalue()}")
    return _Evaluated(scores, [f"{each.reason}: {each.error}" for each in episodes if each.error])
