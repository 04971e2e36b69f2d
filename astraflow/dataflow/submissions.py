"""Tasks that users submit, as sources: one per environment, ahead of all others, empty until somebody submits.

It reads no log: whoever does hands submissions in, in order. Invariant: a submission's group is keyed by the id of its
message, so it is played once, however often the message was stored, and its sender knows the group's id before; its
payload stays until it is closed.
"""

from typing import Any

import msgspec

from astraflow.config import RunConfig, SourceSection
from astraflow.dataflow.sources import Choice, Source
from astraflow.messages import Submission
from astraflow.messages.ids import DIGITS, GroupKey, keyed_seed

PREFIX = "submitted-"
MOST_MEMBERS = 1024  # of a group
MOST_REMEMBERED = 10_000  # per environment: a message that comes again after so many others is played again
FIRST = 1e9  # the share of such a source: its tasks are always the furthest behind


def index_of(message_id: str) -> int:
    """The index of a submission's group, by the id of its message."""
    index: int = keyed_seed(0, "submission", message_id) % 10**DIGITS
    return index


class Waiting(msgspec.Struct, frozen=True):
    """A submission whose group isn't closed. In snapshots; append fields only."""

    place: int  # in SUBMIT
    submission: Submission
    key: int = -1  # the group's index; -1 = its place


class Submissions(Source):
    """What was submitted for one environment."""

    def __init__(self, config: RunConfig, env: str, waiting: list[Waiting], remembered: list[int]) -> None:
        """`waiting` and `remembered`: where the snapshot left them."""
        alike = next((source for source in config.sources.values() if source.env == env), SourceSection(env=env))
        section = SourceSection(env=env, weight=FIRST, group_size=alike.group_size)
        super().__init__(f"{PREFIX}{env}", section, env_size=None, seed=config.run.seed)
        self._waiting = {submitted.place if submitted.key < 0 else submitted.key: submitted for submitted in waiting}
        self._remembered = dict.fromkeys([*remembered, *self._waiting])

    def waiting(self) -> list[Waiting]:
        """For the snapshot."""
        return list(self._waiting.values())

    def remembered(self) -> list[int]:
        """For the snapshot: every group that a message that comes again may belong to."""
        return list(self._remembered)

    def submit(self, place: int, submission: Submission, message_id: str) -> None:
        """Somebody submitted it, now or before: then this changes nothing. `place` is its sequence in the log."""
        index = index_of(message_id)
        if index not in self._remembered:
            self._remembered[index] = None
            self._waiting[index] = Waiting(place, submission, index)

    def is_closed(self, index: int) -> bool:
        """The group was submitted and closed, as far as is remembered."""
        return index in self._remembered and index not in self._waiting

    def group_closed(self, index: int) -> None:
        """Its group is closed."""
        self._waiting.pop(index, None)
        if len(self._remembered) - len(self._waiting) > MOST_REMEMBERED:
            del self._remembered[next(closed for closed in self._remembered if closed not in self._waiting)]

    def payload_of(self, env: str, index: int) -> dict[str, Any]:
        """What was submitted; the environment is the source's own."""
        return self._waiting[index].submission.payload

    def next_from(self, position: int) -> Choice | None:
        ahead = ((waiting.place, index) for index, waiting in self._waiting.items() if waiting.place >= position)
        place, index = min(ahead, default=(-1, -1))
        return None if place < 0 else Choice(GroupKey(self.name, 0, index), place)

    def has(self, key: GroupKey, position: int) -> bool:
        waiting = self._waiting.get(key.index)
        return key == GroupKey(self.name, 0, key.index) and waiting is not None and waiting.place == position

    def members_of(self, key: GroupKey) -> tuple[int, int]:
        waiting = self._waiting.get(key.index)
        return (waiting.submission.group_size if waiting else 0) or self.section.group_size, 0


def submissions_of(
    config: RunConfig, waiting: dict[str, list[Waiting]], remembered: dict[str, list[int]]
) -> dict[str, Submissions]:
    """By the source's name. None in deterministic mode: what comes when is not repeatable."""
    if config.run.deterministic:
        return {}
    sources = [Submissions(config, env, waiting.get(env, []), remembered.get(env, [])) for env in config.envs]
    return {source.name: source for source in sources}
