"""Which tasks of a source are worth a rollout, by the names used in `[sources.<name>.select].kind`."""

from astraflow.dataflow.select.base import SELECTS, GroupResult, Prompt, Select

__all__ = ["SELECTS", "GroupResult", "Prompt", "Select"]
