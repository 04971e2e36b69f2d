"""avg@n, pass@k and standard errors."""

import itertools
import math

import pytest

from astraflow.dataflow.eval_rounds import ladder, pass_at, standard_error


@pytest.mark.parametrize(("answers", "right", "k"), [(1, 0, 1), (1, 1, 1), (5, 2, 3), (6, 1, 2), (6, 6, 4), (7, 3, 7)])
def test_pass_at_k_is_the_mean_over_all_choices_of_k_answers(answers: int, right: int, k: int) -> None:
    choices = list(itertools.combinations([1] * right + [0] * (answers - right), k))
    assert pass_at(k, answers=answers, right=right) == pytest.approx(sum(map(any, choices)) / len(choices))


def test_pass_at_one_is_the_mean() -> None:
    assert pass_at(1, answers=8, right=3) == pytest.approx(3 / 8)


@pytest.mark.parametrize(
    ("repeats", "expected"), [(1, ()), (2, (2,)), (3, (2, 3)), (8, (2, 4, 8)), (10, (2, 4, 8, 10))]
)
def test_the_ladder_of_k(repeats: int, expected: tuple[int, ...]) -> None:
    assert ladder(repeats) == expected


def test_the_standard_error_of_two_tasks_by_hand() -> None:
    assert standard_error([0.0, 1.0]) == pytest.approx(math.sqrt(0.5 / 2))
    assert standard_error([0.3]) is None
