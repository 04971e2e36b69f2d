"""Where training tasks come from: which task of which source is next.

It issues nothing: `choose` looks, `advance` moves. Invariant: a source's position is one number, and while its
selector learns nothing new, the same number gives the same next task in every process; shares follow the weights.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from astraflow.config import SourceSection
from astraflow.dataflow.select import SELECTS, GroupResult, Prompt, Select
from astraflow.dataflow.stages import Stage, StageState
from astraflow.errors import ConfigError
from astraflow.messages.ids import LEVEL_STRIDE, GroupKey, keyed_seed, level_of, uniform
from astraflow.messages.mixing import GOLDEN, mixed

_PERMUTATIONS_KEPT = 8
# A selector that skips this many tasks in a row, and at least all of one pass, gets the next one all the same: a run
# must go on. A pass over very many tasks isn't walked to its end.
LEAST_SKIPPED, _MOST_SKIPPED = 1_000, 20_000


@lru_cache(maxsize=_PERMUTATIONS_KEPT)
def permutation(size: int, seed: int) -> NDArray[np.int64]:
    """A seeded order of range(size): int64[size]."""
    keys = mixed(np.arange(size, dtype=np.uint64) * GOLDEN + np.uint64(seed))
    return np.argsort(keys, kind="stable")


class Choice(NamedTuple):
    """The next group of a source."""

    key: GroupKey
    position: int  # among the source's tasks, counted over all epochs
    refused: int = 0  # tasks, itself the first, of which the selector takes none; then it is tried all the same


class Source:
    """One [sources.<name>]: which group stands at which position, and which of them are tried."""

    def __init__(
        self,
        name: str,
        section: SourceSection,
        *,
        env_size: int | None,
        seed: int,
        by_size: bool = False,
        saved: StageState | None = None,
    ) -> None:
        """`env_size` None = the environment has no end. Raises ConfigError for tasks that the environment lacks.

        Args:
            by_size: the share follows the size too.
            saved: the selector's state.
        """
        self.name = name
        self.section = section
        self._seed = seed
        self.size = section.size or (None if env_size is None else env_size - section.first)
        if env_size is not None and section.first + max(1, self.size or 0) > env_size:
            raise ConfigError(
                f"[sources.{name}] wants {section.size or 'all'} tasks from {section.first} on, environment "
                f"{section.env!r} has {env_size}; lower first or size"
            )
        if self.size is None and section.shuffle:
            raise ConfigError(f"[sources.{name}] has shuffle = true without an end; give it a size")
        if self.size is None and by_size:
            raise ConfigError(f"dataflow.shares = 'size', but [sources.{name}] has no end; give it a size")
        self.share = section.weight * (self.size or 1 if by_size else 1)
        path = f"sources.{name}.select"
        self.select: Stage[Select] = Stage(path, section.select.kind, section.select.args, SELECTS, saved)
        self._level = getattr(self.select.algorithm, "level", None)
        self._next: dict[int, Choice | None] = {}  # by position, until the selector learns something

    def ends_at(self, position: int) -> bool:
        """No group stands at `position` ≥ 0: every pass over the tasks lies before it."""
        return self.size is not None and self.section.epochs > 0 and position >= self.section.epochs * self.size

    def key_at(self, position: int, level: int = 0) -> GroupKey:
        """The group at `position`, counted over all epochs, at that level of the environment."""
        first = self.section.first + level * LEVEL_STRIDE
        if self.size is None:
            return GroupKey(self.name, 0, first + position)
        epoch, place = divmod(position, self.size)
        if self.section.shuffle:
            place = int(permutation(self.size, keyed_seed(self._seed, "shuffle", self.name, epoch))[place])
        return GroupKey(self.name, epoch, first + place)

    def has(self, key: GroupKey, position: int) -> bool:
        """The group stands at that position, at whichever level."""
        return key == self.key_at(position, level_of(key.index))

    def next_from(self, position: int) -> Choice | None:
        """The first group from `position` on that the selector takes; None if it takes none before the end."""
        if position not in self._next:
            self._next[position] = self._search(position)
        return self._next[position]

    def _search(self, position: int) -> Choice | None:
        first, limit = None, max(LEAST_SKIPPED, min(self.size or 0, _MOST_SKIPPED))
        for at in range(position, position + limit):
            if self.ends_at(at):
                return None
            plain = self.key_at(at)
            draw = uniform(self._seed, "select", *plain.parts)
            key = self.key_at(at, int(self.select.ask_number("level", draw))) if self._level else plain
            if self.select.ask("take", Prompt(index=key.index, epoch=key.epoch, draw=draw)):
                return Choice(key, at)
            first = first or Choice(key, at)
        return first._replace(refused=limit) if first else None

    def members_of(self, key: GroupKey) -> tuple[int, int]:
        """Members that a group needs, and redundant ones."""
        return self.section.group_size, self.section.extra

    def observe(self, result: GroupResult) -> None:
        """A group of this source closed."""
        self.select.ask("observe", result)
        self.forget()

    def forget(self) -> None:
        """The selector may answer otherwise from now on."""
        self._next.clear()


class Mixer:
    """All sources, mixed by share: the one that is furthest behind its own is next.

    Whoever may not be chosen for a while (its policies have no credit) doesn't hold up the others, and isn't given
    what it missed afterwards.
    """

    def __init__(
        self, sources: Mapping[str, Source], *, issued: Mapping[str, int], clocks: Mapping[str, float]
    ) -> None:
        """`issued`: per source, how many of its positions lie behind it, skipped ones included."""
        self.sources = sources
        self.issued = {name: issued.get(name, 0) for name in sources}
        self.clocks = {name: clocks.get(name, 0.0) for name in sources}

    @classmethod
    def fresh(cls, sources: Mapping[str, Source], *, seed: int) -> "Mixer":
        """A mixer at the start of a run; the seeded start keeps equal shares from marching in step."""
        clocks = {name: keyed_seed(seed, "mix", name) / 2**63 / source.share for name, source in sources.items()}
        return cls(sources, issued={}, clocks=clocks)

    def copy(self) -> "Mixer":
        """A mixer to advance on trial."""
        return Mixer(self.sources, issued=self.issued, clocks=self.clocks)

    def exhausted(self, name: str) -> bool:
        """The source has no group left that its selector takes."""
        return self.next_of(name) is None

    def choose(self, allowed: Iterable[str]) -> Choice | None:
        """The next group from one of the `allowed` sources; None if all of them are exhausted."""
        live = [name for name in allowed if not self.exhausted(name)]
        if not live:
            return None
        return self.next_of(min(live, key=lambda name: (self.clocks[name], name)))

    def next_of(self, name: str) -> Choice | None:
        """The source's own next group; None if it is exhausted."""
        return self.sources[name].next_from(self.issued[name])

    def advance(self, name: str, position: int) -> None:
        """The source's group at `position` was issued. Its clock ticks by 1 / share."""
        chosen_at = self.clocks[name]
        self.issued[name] = position + 1
        self.clocks = {other: max(clock, chosen_at) for other, clock in self.clocks.items()}
        self.clocks[name] = chosen_at + 1 / self.sources[name].share
