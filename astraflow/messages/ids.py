"""Names of tasks and groups, the seeds that go with them, and closed ids kept as ranges.

It knows no state of a run. Invariant: equal keys give equal ids and equal seeds, in every process and version.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

LEVEL_STRIDE = 10**10  # between the tasks of two levels of an environment; each level has its own indices below it
DIGITS = 18  # of an epoch, index or member; Python refuses to read thousands of them


@dataclass(frozen=True, order=True)
class GroupKey:
    """A group without its incarnation. Sorts by source, epoch and index as numbers."""

    source: str
    epoch: int
    index: int

    @property
    def parts(self) -> tuple[str, int, int]:
        """For keyed draws."""
        return self.source, self.epoch, self.index


def level_of(index: int) -> int:
    """The level of a task's index; 0 where the environment has no levels."""
    return index // LEVEL_STRIDE


def uniform(seed: int, *key: str | int) -> float:
    """A draw in (0, 1) that is fixed by its key."""
    return ((keyed_seed(seed, *key) >> 11) + 0.5) / 2**52


def group_id(incarnation: str, key: GroupKey) -> str:
    """incarnation/source/epoch/index."""
    return f"{incarnation}/{key.source}/{key.epoch}/{key.index}"


def task_id(group: str, member: int) -> str:
    """incarnation/source/epoch/index/member."""
    return f"{group}/{member}"


def parse_task_id(text: str) -> tuple[str, GroupKey, int] | None:
    """(incarnation, group key, member), or None for anything that `task_id` didn't write."""
    parts = text.split("/")
    if len(parts) != 5 or not all(part.isascii() and part.isdigit() and len(part) <= DIGITS for part in parts[2:]):
        return None
    key = GroupKey(parts[1], int(parts[2]), int(parts[3]))
    member = int(parts[4])
    return (parts[0], key, member) if task_id(group_id(parts[0], key), member) == text else None


def keyed_seed(seed: int, *key: str | int) -> int:
    """A seed in [0, 2^63) from the run's seed and a key; the incarnation is left out, so that two runs agree."""
    text = "\0".join(map(str, (seed, *key)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


class RangeSet:
    """A set of integers that costs memory by its gaps, not by its members.

    Invariant: ranges are half-open, disjoint, sorted and never touch each other.
    """

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in ranges:
            self._starts.append(start)
            self._ends.append(end)

    def add(self, value: int) -> bool:
        """Put `value` in. Returns False if it was in already."""
        at = bisect_right(self._starts, value)  # ranges before `at` start at or below value
        if at and value < self._ends[at - 1]:
            return False
        joins_left = at > 0 and self._ends[at - 1] == value
        joins_right = at < len(self._starts) and self._starts[at] == value + 1
        if joins_left and joins_right:
            self._ends[at - 1] = self._ends.pop(at)
            del self._starts[at]
        elif joins_left:
            self._ends[at - 1] = value + 1
        elif joins_right:
            self._starts[at] = value
        else:
            self._starts.insert(at, value)
            self._ends.insert(at, value + 1)
        return True

    def __contains__(self, value: int) -> bool:
        at = bisect_right(self._starts, value)
        return at > 0 and value < self._ends[at - 1]

    def __len__(self) -> int:
        return sum(self._ends) - sum(self._starts)

    def __iter__(self) -> Iterator[int]:
        for start, end in self.ranges():
            yield from range(start, end)

    def ranges(self) -> list[tuple[int, int]]:
        """The half-open ranges, sorted."""
        return list(zip(self._starts, self._ends, strict=True))
