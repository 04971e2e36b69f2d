"""The order in which workers get the tests."""

import pytest

from tests.scheduling import slow_first


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [0, 1, 5, 100])
def test_every_worker_begins_with_its_share_of_the_slow_tests(workers: int, count: int) -> None:
    items = list(range(count))
    ordered = slow_first(items, lambda item: item % 10 == 9, workers=workers)
    assert sorted(ordered) == items
    if count == 100:
        stretch = count // workers
        begins = [ordered[worker * stretch : worker * stretch + 10 // workers] for worker in range(workers)]
        assert all(item % 10 == 9 for begin in begins[:1] for item in begin)
        firsts = [next(i for i, item in enumerate(ordered) if item == slow) for slow in range(9, 100, 10)]
        assert {min(first // stretch, workers - 1) for first in firsts} == set(range(workers))
