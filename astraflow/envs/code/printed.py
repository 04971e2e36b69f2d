"""Whether what a program printed is what it should have. Pure.

Lines count, blanks at their ends and empty lines at the end don't. Where a line isn't the same letter for letter, its
words are compared, and words that are numbers by their value, as the judges of published sets do.
"""

import math

_CLOSE = 1e-6
_LONGEST_NUMBER = 40  # letters


def same_output(printed: str, expected: str) -> bool:
    """Whether it counts as right."""
    got, wanted = _lines(printed), _lines(expected)
    return len(got) == len(wanted) and all(
        one == other or _same_words(one.split(), other.split()) for one, other in zip(got, wanted, strict=True)
    )


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


def _same_words(got: list[str], wanted: list[str]) -> bool:
    return len(got) == len(wanted) and all(
        one == other or _same_number(one, other) for one, other in zip(got, wanted, strict=True)
    )


def _same_number(one: str, other: str) -> bool:
    """Only where one of them is a decimal fraction: of whole numbers every digit counts."""
    if max(len(one), len(other)) > _LONGEST_NUMBER or not ("." in one + other or "e" in (one + other).lower()):
        return False
    try:
        value, wanted = float(one), float(other)
    except ValueError:
        return False
    return math.isclose(value, wanted, rel_tol=_CLOSE, abs_tol=_CLOSE)
