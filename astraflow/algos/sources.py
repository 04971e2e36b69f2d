"""Where training tasks come from: which task of which source is next.

It issues nothing: `choose` looks, `advance` moves. Invariant: a source's position is one number, so the same number
gives the same next task in every process; shares of the sources follow their weights.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from astraflow.algos.ids import GroupKey, keyed_seed
from astraflow.config import SourceSection
from astraflow.errors import ConfigError

_PERMUTATIONS_KEPT = 8


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finaliser: numpy's own shuffles may differ between its releases, this can't."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@lru_cache(maxsize=_PERMUTATIONS_KEPT)
def permutation(size: int, seed: int) -> NDArray[np.int64]:
    """A seeded order of range(size): int64[size]."""
    keys = _mixed(np.arange(size, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed))
    return np.argsort(keys, kind="stable")


class Source:
    """One [sources.<name>]: which group stands at which position. Holds no state."""

    def __init__(self, name: str, section: SourceSection, *, env_size: int | None, seed: int) -> None:
        """`env_size` None = the environment has no end. Raises ConfigError for tasks that the environment lacks."""
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

    def ends_at(self, position: int) -> bool:
        """No group stands at `position` ≥ 0: every pass over the tasks lies before it."""
        return self.size is not None and self.section.epochs > 0 and position >= self.section.epochs * self.size

    def key_at(self, position: int) -> GroupKey:
        """The group at `position`, counted over all epochs."""
        if self.size is None:
            return GroupKey(self.name, 0, self.section.first + position)
        epoch, place = divmod(position, self.size)
        if self.section.shuffle:
            place = int(permutation(self.size, keyed_seed(self._seed, "shuffle", self.name, epoch))[place])
        return GroupKey(self.name, epoch, self.section.first + place)


class Mixer:
    """All sources, mixed by weight: the one that is furthest behind its share is next.

    Whoever may not be chosen for a while (its policies have no credit) doesn't hold up the others, and isn't given
    what it missed afterwards.
    """

    def __init__(
        self, sources: Mapping[str, Source], *, issued: Mapping[str, int], clocks: Mapping[str, float]
    ) -> None:
        self.sources = sources
        self.issued = {name: issued.get(name, 0) for name in sources}
        self.clocks = {name: clocks.get(name, 0.0) for name in sources}

    @classmethod
    def fresh(cls, sources: Mapping[str, Source], *, seed: int) -> "Mixer":
        """A mixer at the start of a run; the seeded start keeps equal weights from marching in step."""
        clocks = {name: keyed_seed(seed, "mix", name) / 2**63 / each.section.weight for name, each in sources.items()}
        return cls(sources, issued={}, clocks=clocks)

    def copy(self) -> "Mixer":
        """A mixer to advance on trial."""
        return Mixer(self.sources, issued=self.issued, clocks=self.clocks)

    def exhausted(self, name: str) -> bool:
        """Every group of the source was issued."""
        return self.sources[name].ends_at(self.issued[name])

    def choose(self, allowed: Iterable[str]) -> GroupKey | None:
        """The next group from one of the `allowed` sources; None if all of them are exhausted."""
        live = [name for name in allowed if not self.exhausted(name)]
        if not live:
            return None
        return self.next_of(min(live, key=lambda each: (self.clocks[each], each)))

    def next_of(self, name: str) -> GroupKey:
        """The source's own next group, whether or not it is exhausted."""
        return self.sources[name].key_at(self.issued[name])

    def advance(self, name: str) -> None:
        """The group that `choose` gave for this source was issued. A source's clock ticks by 1 / weight."""
        chosen_at = self.clocks[name]
        self.issued[name] += 1
        self.clocks = {other: max(clock, chosen_at) for other, clock in self.clocks.items()}
        self.clocks[name] = chosen_at + 1 / self.sources[name].section.weight
