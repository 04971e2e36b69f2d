"""How old a sample is, in optimizer steps: version → step, and what that allows.

It decides nothing about batches. Invariant: a version that isn't known counts as at least as old as it can be.
"""

from bisect import bisect_right
from collections.abc import Iterable

from astraflow.messages import VersionStep

# A version is looked up while its samples are in flight or buffered, so this many steps is ample.
KEPT_VERSIONS = 1024


class VersionMap:
    """The steps of one policy's versions, as its trainer told them."""

    def __init__(self, points: Iterable[tuple[int, int]] = ()) -> None:
        self._versions: list[int] = []
        self._steps: list[int] = []
        for version, step in points:
            self.learn(version, step)

    def learn(self, version: int, step: int) -> None:
        """`version` was published after `step` optimizer steps; the newest word on a version holds."""
        at = bisect_right(self._versions, version)
        if at and self._versions[at - 1] == version:
            self._steps[at - 1] = step
            return
        self._versions.insert(at, version)
        self._steps.insert(at, step)
        if len(self._versions) > KEPT_VERSIONS:
            del self._versions[0], self._steps[0]

    def learn_all(self, recent: Iterable[VersionStep]) -> None:
        """`learn` for each."""
        for point in recent:
            self.learn(point.version, point.step)

    def step_of(self, version: int) -> int:
        """The step of `version`; of the newest known version below it if it is unknown; 0 if there is none."""
        at = bisect_right(self._versions, version)
        return self._steps[at - 1] if at else 0

    def oldest_allowed(self, train_step: int, max_staleness: int) -> int:
        """The smallest version from which on all may still be trained at `train_step`; 0 = any.

        The newest known version if none is young enough yet: what isn't published can't be asked for.
        """
        if train_step <= max_staleness or not self._versions:
            return 0
        allowed = self._versions[-1]
        for version, step in zip(reversed(self._versions), reversed(self._steps), strict=True):
            if step < train_step - max_staleness:
                break
            allowed = version
        return allowed

    def points(self) -> list[tuple[int, int]]:
        """(version, step) in order of version."""
        return list(zip(self._versions, self._steps, strict=True))


def oldest_step(versions: VersionMap, sampled_by: Iterable[int]) -> int:
    """The step of the oldest of these versions (at least one).

    Oldest by step: after a trainer fell back to a checkpoint, a newer version can be from an older step.
    """
    return min(map(versions.step_of, sampled_by))


def staleness(versions: VersionMap, sampled_by: Iterable[int], train_step: int) -> int:
    """Steps between the oldest of these versions and the step that trains what they sampled; never below 0.

    A version from a lineage that was lost can be "newer" than the step that trains it.
    """
    return max(0, train_step - oldest_step(versions, sampled_by))
