"""What is trained again, worked by hand."""

from collections import Counter
from typing import Any

import msgspec
import pytest

from astraflow.config import ReplaySection
from astraflow.dataflow.buffer import BufferedGroup
from astraflow.dataflow.replay import Replay
from astraflow.dataflow.staleness import VersionMap
from astraflow.messages.ids import GroupKey

VERSIONS = VersionMap([(0, 0), (1, 1), (2, 2), (3, 3)])


def group(index: int, version: int = 0) -> BufferedGroup:
    key = GroupKey("s", 0, index)
    return BufferedGroup(f"i/s/0/{index}", key, index, (0, 1), (2 * index + 1, 2 * index + 2), (0.0, 1.0), (version,))


def replay_of(kind: str, *, batch_groups: int = 4, **section: Any) -> Replay:
    given = ReplaySection(**{"kind": kind, "share": 0.5, "max_staleness": 3, **section})
    return Replay("solver", given, batch_groups=batch_groups, max_staleness=1, seed=0)


def indices(groups: list[BufferedGroup]) -> list[int]:
    return [each.key.index for each in groups]


def test_latest_takes_the_newest_within_the_bound() -> None:
    replay = replay_of("latest")
    for index, version in enumerate([2, 2, 0, 2]):
        replay.trained(group(index, version), number=1, worth=1.0)
    assert replay.per_batch == 2
    assert indices(replay.pick(2, VERSIONS, train_step=4)) == [3, 1], "version 0 would be 4 steps old"
    assert indices(replay.stale(VERSIONS, 4)) == [2]


def test_a_member_that_has_aged_since_is_left_out_and_the_others_are_trained_again() -> None:
    replay = replay_of("latest", max_staleness=2)
    both = msgspec.structs.replace(group(0), versions=(2, 3), sampled_by=((2,), (3,)))
    replay.trained(both, number=1, worth=1.0)
    (at_four,), (at_five,) = replay.pick(2, VERSIONS, train_step=4), replay.pick(3, VERSIONS, train_step=5)
    assert (at_four.trained_members, at_five.trained_members) == ((0, 1), (1,))
    assert replay.pick(4, VERSIONS, train_step=6) == []
    assert indices(replay.stale(VERSIONS, 5)) == []
    assert indices(replay.stale(VERSIONS, 6)) == [0]


def test_a_group_is_in_so_many_batches_and_no_more() -> None:
    replay = replay_of("latest", max_uses=3)
    assert replay.trained(group(0), 1, worth=1.0) == []
    assert replay.trained_again("i/s/0/0") == []
    assert indices(replay.trained_again("i/s/0/0")) == [0]
    assert replay.pick(4, VERSIONS, 1) == []


def test_the_oldest_make_room() -> None:
    replay = replay_of("uniform", capacity=2)
    gone = [each for index in range(4) for each in replay.trained(group(index), 1, worth=1.0)]
    assert indices(gone) == [0, 1]


def test_uniform_favours_nobody_and_repeats_itself() -> None:
    replay = replay_of("uniform")
    for index in range(4):
        replay.trained(group(index), 1, worth=float(index))
    picked = Counter(index for number in range(1000) for index in indices(replay.pick(number, VERSIONS, 1)))
    assert all(440 < picked[index] < 560 for index in range(4)), picked
    assert replay.pick(7, VERSIONS, 1) == replay.pick(7, VERSIONS, 1)


def test_prioritized_draws_in_proportion_to_fresh_worth() -> None:
    replay = replay_of("prioritized", args={"alpha": 1.0, "decay": 2.0}, share=0.25)
    replay.trained(group(0, 3), 1, worth=1.0)  # age 0 at step 3
    replay.trained(group(1, 3), 1, worth=3.0)
    replay.trained(group(2, 1), 1, worth=3.0)  # two steps older, so 1/e of that
    replay.trained(group(3, 3), 1, worth=0.0)
    picked = Counter(index for number in range(4000) for index in indices(replay.pick(number, VERSIONS, 3)))
    weights = {0: 1.0, 1: 3.0, 2: 3.0 / 2.718281828}
    for index, weight in weights.items():
        assert picked[index] / 4000 == pytest.approx(weight / sum(weights.values()), abs=0.03)
    assert picked[3] == 0


def test_without_replay_nothing_is_kept() -> None:
    replay = replay_of("none")
    assert indices(replay.trained(group(0), 1, worth=1.0)) == [0]
    assert (replay.per_batch, replay.pick(2, VERSIONS, 1), replay.groups()) == (0, [], [])
