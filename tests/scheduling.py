"""The order of tests under pytest-xdist: every worker begins with its share of the slow ones.

`--dist worksteal` gives each worker one stretch of the list, and later, what others have left over. Slow tests at the
end of the list would be what everybody waits for.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def slow_first(items: Sequence[T], is_slow: Callable[[T], bool], *, workers: int) -> list[T]:
    """The same items, so that each of `workers` equal stretches begins with as many slow ones as the others."""
    slow = [item for item in items if is_slow(item)]
    quick = [item for item in items if not is_slow(item)]
    ordered: list[T] = []
    for worker in range(workers):
        begins_with = slow[worker::workers]
        stretch = (len(items) - len(ordered)) // (workers - worker)
        fill = max(0, stretch - len(begins_with))
        ordered += begins_with + quick[:fill]
        quick = quick[fill:]
    return ordered + quick
