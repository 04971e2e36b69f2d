"""Tasks that users submit, as sources: one per environment, ahead of all others, empty until somebody submits.

It reads no log: whoever does hands submissions in, in order. Invariant: a submission's group is keyed by its place in
the SUBMIT log, so it is issued once and under the same id, whoever reads the log; its payload stays until it is closed.
"""

from typing import Any

import msgspec

from astraflow.config import RunConfig, SourceSection
from astraflow.dataflow.sources import Choice, Source
from astraflow.messages import Submission
from astraflow.messages.ids import GroupKey

PREFIX = "submitted-"
MOST_MEMBERS = 1024  # of a group
FIRST = 1e9  # the share of such a source: its tasks are always the furthest behind


class Waiting(msgspec.Struct, frozen=True):
    """A submission whose group isn't closed. In snapshots; append fields only."""

    place: int  # in SUBMIT
    submission: Submission


class Submissions(Source):
    """What was submitted for one environment."""

    def __init__(self, config: RunConfig, env: str, waiting: list[Waiting]) -> None:
        alike = next((source for source in config.sources.values() if source.env == env), SourceSection(env=env))
        section = SourceSection(env=env, weight=FIRST, group_size=alike.group_size)
        super().__init__(f"{PREFIX}{env}", section, env_size=None, seed=config.run.seed)
        self._waiting = {submitted.place: submitted for submitted in waiting}

    def waiting(self) -> list[Waiting]:
        """For the snapshot."""
        return list(self._waiting.values())

    def submit(self, place: int, submission: Submission) -> None:
        """Somebody submitted it; `place` is its sequence in the log."""
        self._waiting[place] = Waiting(place, submission)

    def group_closed(self, place: int) -> None:
        """Its group is closed."""
        self._waiting.pop(place, None)

    def payload_of(self, env: str, place: int) -> dict[str, Any]:
        """What was submitted; the environment is the source's own."""
        return self._waiting[place].submission.payload

    def next_from(self, position: int) -> Choice | None:
        place = min((place for place in self._waiting if place >= position), default=None)
        return None if place is None else Choice(GroupKey(self.name, 0, place), place)

    def has(self, key: GroupKey, position: int) -> bool:
        return key == GroupKey(self.name, 0, position)

    def members_of(self, key: GroupKey) -> tuple[int, int]:
        waiting = self._waiting.get(key.index)
        return (waiting.submission.group_size if waiting else 0) or self.section.group_size, 0


def submissions_of(config: RunConfig, waiting: dict[str, list[Waiting]]) -> dict[str, Submissions]:
    """By the source's name. None in deterministic mode: what comes when is not repeatable."""
    if config.run.deterministic:
        return {}
    sources = [Submissions(config, env, waiting.get(env, [])) for env in config.envs]
    return {source.name: source for source in sources}
