"""The knobs of a run's data algorithms, by their keys in the run file."""

from typing import Any

from astraflow.dataflow.stages import Stage
from astraflow.dataflow.state import DataflowState
from astraflow.named import arguments_of


def knobs_of(state: DataflowState) -> dict[str, tuple[Stage[Any], str]]:
    """Key → the stage and its argument, e.g. `sources.math.select.args.target`."""
    stages: dict[str, Stage[Any]] = {
        f"sources.{name}.select.args": source.select for name, source in state.mixer.sources.items()
    }
    for policy, flow in state.flows.items():
        path = f"policies.{policy}.trainer"
        stages |= {f"{path}.filter_args.{name}": each for name, each in flow.closing.filters.items()}
        if flow.stock.replay.rank is not None:
            stages[f"{path}.replay.args"] = flow.stock.replay.rank
    return {
        f"{path}.{name}": (stage, name)
        for path, stage in stages.items()
        for name in arguments_of(type(stage.algorithm))
    }
