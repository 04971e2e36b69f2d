"""Selectors, worked by hand."""

from typing import Any

import msgspec
import pytest

from astraflow.dataflow.select import SELECTS, GroupResult, Prompt, Select
from astraflow.dataflow.stages import Stage, StageState
from astraflow.errors import ConfigError
from astraflow.messages.ids import LEVEL_STRIDE


def stage(kind: str, saved: StageState | None = None, **args: object) -> Stage[Any]:
    return Stage("select", kind, args, SELECTS, saved)


def select(kind: str, **args: object) -> Any:
    return stage(kind, **args).algorithm


def result(index: int, *rewards: float, correct: float | None = None, epoch: int = 0) -> GroupResult:
    return GroupResult(index=index, epoch=epoch, rewards={"solver": rewards}, correct=correct, batch_groups=4)


def chance(selector: Select, index: int) -> float:
    """The share of a hundred evenly spread draws with which the task is taken."""
    return sum(selector.take(Prompt(index=index, epoch=0, draw=(k + 0.5) / 100)) for k in range(100)) / 100


EASY, HARD, MIXED = (1.0, 1.0), (0.0, 0.0), (0.0, 1.0)


def test_success_is_what_was_correct_else_the_clipped_reward() -> None:
    assert result(0, 2.0, 0.0).success == 1.0
    assert result(0, -3.0, -1.0).success == 0.0
    assert result(0, 0.1, 0.1, correct=1.0).success == 1.0
    assert not result(0, 0.1, 0.1 + 1e-9).mixed


def test_a_group_is_mixed_if_any_policy_can_learn_from_it() -> None:
    assert GroupResult(index=0, epoch=0, rewards={"a": (1.0, 1.0), "b": (0.0, 1.0), "c": ()}).mixed


def test_greso_skips_by_the_streak_of_zero_variance_groups() -> None:
    greso = select("greso", start=0.5)
    assert chance(greso, 7) == 1.0
    for expected in (0.5, 0.25, 0.12):  # p, p², p³ = 0.125
        greso.observe(result(7, *HARD))
        assert chance(greso, 7) == expected
    greso.observe(result(7, *MIXED))
    assert chance(greso, 7) == 1.0, "one group with a signal ends the streak"


def test_greso_never_falls_below_its_floor() -> None:
    greso = select("greso", floor=0.05)
    for _ in range(20):
        greso.observe(result(7, *EASY))
    assert chance(greso, 7) == 0.05


def test_greso_starts_a_streak_anew_when_a_solved_task_fails() -> None:
    greso = select("greso", start=0.5)
    for rewards, expected in ((EASY, 0.5), (EASY, 0.25), (HARD, 0.5), (HARD, 0.25)):
        greso.observe(result(7, *rewards))
        assert chance(greso, 7) == expected


# Target 0.3, a third of it for easy ones: 0.1 and 0.2. Ten groups have 2 easy ones and 1 hard one.
ITERATION = [EASY] * 2 + [HARD] + [MIXED] * 7


@pytest.mark.parametrize(
    ("easy", "hard", "expected"),
    [(3, 5, (0.4, 0.4)), (1, 5, (0.6, 0.4)), (3, 3, (0.4, 0.6)), (1, 3, (0.6, 0.6))],
)
def test_greso_splits_its_target_between_easy_and_hard(easy: int, hard: int, expected: tuple[float, float]) -> None:
    """Of 20 groups the easy share aims at 0.3 · 1/3 = 2 groups, the hard one at the other 4."""
    greso = select("greso", target=0.3, easy_share=1 / 3, window=20 - easy - hard, step=0.1)
    outcomes = [EASY] * easy + [HARD] * hard + [MIXED] * (20 - easy - hard)
    for index, rewards in enumerate(outcomes):
        greso.observe(result(index, *rewards, epoch=1))
    assert (greso.p_easy, greso.p_hard) == pytest.approx(expected)


@pytest.mark.parametrize("window", [7, 0], ids=["window", "batch"])
def test_greso_adapts_easy_and_hard_apart_once_per_training_iteration(window: int) -> None:
    greso = select("greso", target=0.3, window=window, step=0.1)
    iteration = ITERATION if window else ITERATION[:-3]  # a batch holds four groups, see `result`
    for index, rewards in enumerate(iteration[:-1]):
        greso.observe(result(index, *rewards, epoch=1))
    assert (greso.p_easy, greso.p_hard) == (0.5, 0.5), "a batch isn't full"
    greso.observe(result(9, *MIXED, epoch=1))
    assert greso.p_easy == pytest.approx(0.4), "0.2 ≥ 0.1: skip more of them"
    assert greso.p_hard == pytest.approx(0.6), "0.1 < 0.2: explore more"
    assert (chance(greso, 0), chance(greso, 2)) == (0.4, 0.6)


def test_greso_does_not_adapt_in_the_first_pass() -> None:
    greso = select("greso", target=0.3, window=7, step=0.1)
    for index, rewards in enumerate(ITERATION):
        greso.observe(result(index, *rewards))
    assert (greso.p_easy, greso.p_hard) == (0.5, 0.5), "nothing could have been skipped"
    for index, rewards in enumerate([HARD] * 3 + [MIXED] * 7):
        greso.observe(result(index, *rewards, epoch=1))
    assert greso.p_easy == pytest.approx(0.6), "the first pass isn't counted in the second"
    assert greso.p_hard == pytest.approx(0.4)


def test_greso_keeps_both_probabilities_within_bounds() -> None:
    greso = select("greso", window=1, step=0.3)
    for index in range(10):
        greso.observe(result(index, *EASY, epoch=1))
        greso.observe(result(index + 10, *MIXED, epoch=1))
    assert (greso.p_easy, greso.p_hard) == (0.05, 0.95)


def test_greso_skips_nothing_while_it_warms_up() -> None:
    greso = select("greso", warm_up=3)
    greso.observe(result(7, *HARD))
    greso.observe(result(7, *HARD))
    assert chance(greso, 7) == 1.0
    greso.observe(result(7, *HARD))
    assert chance(greso, 7) == 0.12


def test_filter_solved_drops_for_good_after_so_many_in_a_row() -> None:
    solved = select("filter-solved", solved=0.75, times=2)
    solved.observe(result(1, 1.0, 1.0, 1.0, 0.0))
    assert chance(solved, 1) == 1.0
    solved.observe(result(1, *MIXED))  # ends the row
    solved.observe(result(1, *EASY))
    assert chance(solved, 1) == 1.0
    solved.observe(result(1, *EASY))
    assert chance(solved, 1) == 0.0
    assert chance(solved, 2) == 1.0


def test_curriculum_prefers_the_target_difficulty() -> None:
    curriculum = select("curriculum", target=0.5, width=0.5, floor=0.1, momentum=1.0)
    assert chance(curriculum, 0) == 1.0, "what it doesn't know is tried"
    for index, success in enumerate([0.5, 0.25, 1.0]):
        curriculum.observe(result(index, 0.0, correct=success))
    assert [chance(curriculum, index) for index in range(3)] == [1.0, 0.5, 0.1]


def test_success_rates_average_what_was_seen() -> None:
    curriculum = select("curriculum", target=0.0, width=1.0, momentum=0.5)
    curriculum.observe(result(0, 0.0, correct=1.0))
    curriculum.observe(result(0, 0.0, correct=0.0))  # (1 + 0) / 2
    curriculum.observe(result(0, 0.0, correct=0.0))  # 0.25
    assert chance(curriculum, 0) == 0.75


def test_pools_come_up_with_their_own_probability() -> None:
    pools = select("pools", easy=0.1, hard=0.3)
    for index, rewards in enumerate([EASY, HARD, MIXED]):
        pools.observe(result(index, *rewards))
    assert [chance(pools, index) for index in range(4)] == [0.1, 0.3, 1.0, 1.0]


def test_levels_are_climbed_by_the_success_on_the_newest() -> None:
    levels = select("levels", levels=3, up=0.75, down=0.25, window=2, review=0.2)
    drawn = [levels.level((k + 0.5) / 100) for k in range(100)]
    assert drawn == [0] * 100
    levels.observe(result(5, *EASY))
    levels.observe(result(6, 0.5))
    assert levels.newest == 1, "mean 0.75"
    levels.observe(result(7, *HARD))  # of level 0: doesn't count any more
    levels.observe(result(LEVEL_STRIDE + 7, *EASY))
    levels.observe(result(LEVEL_STRIDE + 8, *EASY))
    assert levels.newest == 2
    drawn = [levels.level((k + 0.5) / 100) for k in range(100)]
    assert [drawn.count(level) for level in range(3)] == [10, 10, 80]
    for index in (1, 2, 3, 4):
        levels.observe(result(2 * LEVEL_STRIDE + index, *EASY))
    assert levels.newest == 2, "there is none above"
    for index in (5, 6):
        levels.observe(result(2 * LEVEL_STRIDE + index, *HARD))
    assert levels.newest == 1


ARGS: dict[str, dict[str, Any]] = {"levels": {"levels": 3, "window": 4}, "greso": {"window": 5, "step": 0.1}}


@pytest.mark.parametrize("kind", sorted(SELECTS))
def test_a_restored_selector_goes_on_where_it_was(kind: str) -> None:
    results = [result(k % 7 + (k % 2) * LEVEL_STRIDE, float(k % 3 > 0), float(k % 5 > 1)) for k in range(60)]
    one = stage(kind, **ARGS.get(kind, {}))
    for each in results[:30]:
        one.algorithm.observe(each)
    data = msgspec.msgpack.encode(one.state())
    two = stage(kind, msgspec.msgpack.decode(data, type=StageState), **ARGS.get(kind, {}))
    for each in results[30:]:
        one.algorithm.observe(each)
        two.algorithm.observe(each)
        assert [chance(one.algorithm, k) for k in range(7)] == [chance(two.algorithm, k) for k in range(7)]
    assert msgspec.msgpack.encode(one.state()) == msgspec.msgpack.encode(two.state())


def test_a_snapshot_of_another_kind_is_left_alone() -> None:
    greso = stage("greso")
    greso.algorithm.observe(result(1, *HARD))
    assert chance(stage("pools", greso.state()).algorithm, 1) == 1.0


def test_a_knob_is_turned_checked_and_kept() -> None:
    greso = stage("greso", target=0.2)
    greso.set_knob("target", 0.4)
    assert greso.algorithm.target == 0.4
    assert stage("greso", greso.state(), target=0.2).algorithm.target == 0.4
    with pytest.raises(ConfigError, match="target is 7"):
        greso.set_knob("target", 7)
    with pytest.raises(ConfigError, match="no knob 'tagret'; did you mean 'target'"):
        greso.set_knob("tagret", 0.1)
    assert greso.algorithm.target == 0.4


class Broken:
    def take(self, prompt: Prompt) -> bool:
        raise RuntimeError("no idea")

    def observe(self, result: GroupResult) -> None: ...


def test_an_algorithm_that_raises_is_named() -> None:
    broken = stage("tests.dataflow.test_select:Broken")
    with pytest.raises(
        ConfigError, match=r"select: .*:Broken failed in take\(\): RuntimeError: no idea \(test_select.py line \d+\)"
    ):
        broken.ask("take", Prompt(index=0, epoch=0, draw=0.5))
