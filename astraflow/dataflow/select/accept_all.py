"""Every task is tried every time."""

from astraflow.dataflow.select.base import GroupResult, Prompt


class AcceptAll:
    """Skips nothing and learns nothing."""

    def take(self, prompt: Prompt) -> bool:
        return True

    def observe(self, result: GroupResult) -> None:
        pass
