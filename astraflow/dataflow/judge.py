"""What one policy makes of a closed group: which members count, and whether it is trained on.

It keeps no group and counts nothing. Invariant: the same group and episodes give the same answer, in every process.
"""

from collections.abc import Mapping

import numpy as np

from astraflow.config import RunConfig, TrainerSection
from astraflow.dataflow import ledger
from astraflow.dataflow.advantages import AdvantageFunction
from astraflow.dataflow.buffer import BufferedGroup
from astraflow.dataflow.filters import FILTERS, ClosedGroup, Filter
from astraflow.dataflow.groups import OpenGroup
from astraflow.dataflow.held_episodes import HeldEpisodes
from astraflow.dataflow.overlong import Overlong
from astraflow.dataflow.role_groups import strongest
from astraflow.dataflow.samples import Judged, judge
from astraflow.dataflow.stages import Stage, StageState


def buffered(group: OpenGroup, valid: Mapping[int, Judged]) -> BufferedGroup:
    """The group with these of its members, as it waits to be trained."""
    roles = tuple(dict(each.scores) for each in valid.values())
    return BufferedGroup(
        group.id, group.key, group.ordinal, tuple(valid), tuple(group.seats[member].sequence for member in valid),
        tuple(each.score for each in valid.values()),
        tuple(sorted({version for each in valid.values() for version in each.versions})),
        () if all(list(each) == [""] for each in roles) else roles,
    )  # fmt: skip


class Judge:
    """Judges the groups of one policy."""

    def __init__(
        self, config: RunConfig, policy: str, section: TrainerSection, advantages: AdvantageFunction,
        saved: Mapping[str, StageState],
    ) -> None:  # fmt: skip
        """`saved`: its filters' states by name. Raises ConfigError."""
        self._policy = policy
        self._min_group_size = config.dataflow.min_group_size
        self._advantages = advantages
        longest = config.policies[policy].sampling.max_new_tokens
        self._overlong = Overlong(section.overlong_penalty, longest, section.overlong_window * longest)
        path = f"policies.{policy}.trainer.filters"
        self.filters: dict[str, Stage[Filter]] = {
            name: Stage(path, name, section.filter_args.get(name, {}), FILTERS, saved.get(name))
            for name in section.filters
        }

    def judged(self, group: OpenGroup, shelf: HeldEpisodes) -> list[Judged]:
        """Each member: valid, or why it can't be trained on."""
        return [
            judge(shelf[seat.sequence], self._policy, self._overlong) if seat.sequence else Judged(fate=seat.failure)
            for seat in group.seats
        ]

    def reason_against(self, group: OpenGroup, valid: Mapping[int, Judged], shelf: HeldEpisodes) -> str:
        """Why a group with these valid members isn't trained; "" = it is."""
        wanted = group.wanted
        if len(valid) < max(1, min(self._min_group_size or wanted, wanted)):
            return ledger.SMALL_GROUP
        rewards_G = np.array([each.score for each in valid.values()], dtype=np.float64)
        closed = ClosedGroup(
            policy=self._policy, key=group.key, rewards_G=rewards_G,
            advantages_G=strongest([each.scores for each in valid.values()], self._advantages),
            episodes_G=tuple(shelf[group.seats[member].sequence] for member in valid),
        )  # fmt: skip
        return next((name for name, each in self.filters.items() if each.ask("drops", closed)), "")
