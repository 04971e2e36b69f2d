"""How right an answer is: exact match, and F1 of words, as SQuAD's script computes them. Pure.

Source: the evaluation script of SQuAD 1.1 (arXiv:1606.05250 §6.1). Words are counted with their repetitions: with sets
of words, "yes yes yes" would be as right as "yes".
"""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation + "‘’“”´")


def normalised(text: str) -> str:
    """Lower case, without punctuation, articles and repeated blanks."""
    bare = unicodedata.normalize("NFKC", text).lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def exact_match(answer: str, expected: Sequence[str]) -> float:
    """1 if it is any of the expected answers, else 0."""
    return float(bool(normalised(answer)) and normalised(answer) in {normalised(each) for each in expected})


def f1(answer: str, expected: Sequence[str]) -> float:
    """The best harmonic mean of precision and recall of words, 0..1."""
    return max((_f1(normalised(answer).split(), normalised(each).split()) for each in expected), default=0.0)


def _f1(got: list[str], wanted: list[str]) -> float:
    common = sum((Counter(got) & Counter(wanted)).values())
    return 2 * common / (len(got) + len(wanted)) if common else 0.0
