"""Weight versions as a server reports them: text that also says whose weights they are.

Invariant: a label that this engine made is told apart from any other, so that a server that was restarted, or given
weights by somebody else, is noticed whatever version it claims.
"""

import secrets


class Labels:
    """Labels of one engine."""

    def __init__(self) -> None:
        self._owner = f"astraflow-{secrets.token_hex(6)}"

    def label(self, version: int) -> str:
        """What the server is told."""
        return f"{self._owner}.{version}"

    def version(self, label: object) -> int | None:
        """The version; None if somebody else made the label."""
        owner, _, version = str(label).rpartition(".")
        return int(version) if owner == self._owner and version.isdecimal() else None
