"""What one policy makes of a closed group: which members count, their advantages, and whether it is trained on.

It keeps no group and counts nothing. Invariants: a group is judged once, and everything behind this uses what came of
it; the same group and episodes give the same answer, in every process.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from astraflow.config import RunConfig, TrainerSection
from astraflow.dataflow.advantages import AdvantageFunction
from astraflow.dataflow.buffer import BufferedGroup
from astraflow.dataflow.filters import FILTERS, ClosedGroup, Filter
from astraflow.dataflow.groups import OpenGroup
from astraflow.dataflow.held_episodes import HeldEpisodes
from astraflow.dataflow.ledger import Fate
from astraflow.dataflow.samples import JudgedMember, Overlong, judge_episode
from astraflow.dataflow.stages import Stage, StageState


@dataclass(frozen=True, kw_only=True)
class JudgedGroup:
    """A closed group as one policy sees it."""

    id: str
    members: tuple[JudgedMember, ...]  # all of them, in order
    counted: BufferedGroup | None  # those that count, with their advantages; None: not one does
    fate: Fate  # BUFFERED: it may be trained
    filter: str = ""  # that dropped it, where its fate is FILTERED

    @property
    def reason(self) -> str:
        """What the ledger counts its valid members under."""
        return self.filter or str(self.fate)

    @property
    def valid(self) -> list[JudgedMember]:
        """The members with a valid reward, in order."""
        return [member for member in self.members if member.fate is None]

    @property
    def rewards(self) -> tuple[float, ...]:
        """The valid members' rewards, as they were graded."""
        return tuple(member.reward for member in self.valid)

    def met(self, fate: Fate) -> "JudgedGroup":
        """The same group with another fate."""
        return replace(self, fate=fate, filter="")


class Judge:
    """Judges the groups of one policy."""

    def __init__(
        self,
        config: RunConfig,
        policy: str,
        section: TrainerSection,
        advantages: AdvantageFunction,
        held: HeldEpisodes,
        saved: Mapping[str, StageState],
    ) -> None:
        """`saved`: its filters' states by name. Raises ConfigError."""
        self._policy = policy
        self._min_group_size = config.dataflow.min_group_size
        self._advantages = advantages
        self._held = held
        longest = config.policies[policy].sampling.max_new_tokens
        self._overlong = Overlong(section.overlong_penalty, longest, section.overlong_window * longest)
        path = f"policies.{policy}.trainer.filters"
        self.filters: dict[str, Stage[Filter]] = {
            name: Stage(path, name, section.filter_args.get(name, {}), FILTERS, saved.get(name))
            for name in section.filters
        }

    def judge(self, group: OpenGroup) -> JudgedGroup:
        """Whether the group is trained: it is large enough, and no filter drops it."""
        members = self._members(group)
        counted = self._counted(group, members)
        judged = JudgedGroup(id=group.id, members=members, counted=counted, fate=Fate.BUFFERED)
        if counted is None or len(counted.members) < min(self._min_group_size or group.wanted, group.wanted):
            return judged.met(Fate.SMALL_GROUP)
        dropped_by = self._dropped_by(counted)
        return replace(judged, fate=Fate.FILTERED, filter=dropped_by) if dropped_by is not None else judged

    def judge_decided(self, group: OpenGroup, fate: Fate) -> JudgedGroup:
        """The same for a group whose fate is known already: no filter is asked."""
        members = self._members(group)
        return JudgedGroup(id=group.id, members=members, counted=self._counted(group, members), fate=fate)

    def _members(self, group: OpenGroup) -> tuple[JudgedMember, ...]:
        return tuple(
            judge_episode(self._held[seat.sequence], self._policy, self._overlong)
            if seat.sequence
            else JudgedMember(fate=seat.fate)
            for seat in group.seats
        )

    def _counted(self, group: OpenGroup, members: tuple[JudgedMember, ...]) -> BufferedGroup | None:
        valid = [at for at, member in enumerate(members) if member.fate is None]
        if not valid:
            return None
        judged = [members[at] for at in valid]
        roles = tuple(dict(member.scores) for member in judged)
        counted = BufferedGroup(
            group.id,
            group.key,
            group.ordinal,
            tuple(valid),
            tuple(group.seats[at].sequence for at in valid),
            tuple(member.score for member in judged),
            tuple(sorted({version for member in judged for version in member.versions})),
            () if all(list(scores) == [""] for scores in roles) else roles,
            sampled_by=tuple(member.versions for member in judged),
        )
        return counted.with_advantages(self._advantages)

    def _dropped_by(self, counted: BufferedGroup) -> str | None:
        """The first filter that drops the group; None: it passes all."""
        closed = ClosedGroup(
            policy=self._policy,
            key=counted.key,
            rewards_G=np.array(counted.rewards, dtype=np.float64),
            advantages_G=counted.strongest_G,
            episodes_G=tuple(self._held[sequence] for sequence in counted.sequences),
        )
        return next((name for name, stage in self.filters.items() if stage.ask("drops", closed)), None)
