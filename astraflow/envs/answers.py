"""From a reply's text to the answer in it, and the comparison with the expected one. Pure.

It never evaluates what a policy wrote: no `eval`, no `float`, only the end of the text, fixed patterns and bounded
decimals. Invariant: any string gives a result within milliseconds, and no exception.
"""

import re
from decimal import Decimal, InvalidOperation
from enum import StrEnum

from astraflow.envs.notation import LETTERS, plain

MAX_TEXT_CHARS = 4096  # of a reply, from its end
_MAX_NUMBER_CHARS = 64
# ASCII digits only. A sign counts unless it follows something that it would subtract from ("4-1" ends in 1). Letters of
# scripts that put spaces between words make a name of a number behind them; those of others don't.
_NUMBER = re.compile(
    rf"(?:(?<![{LETTERS})\].])[-+])?(?<![{LETTERS}.])"
    r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
)
_TAG = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)


class AnswerMode(StrEnum):
    """Where in a reply the answer is."""

    LAST_NUMBER = "last-number"  # the last number anywhere
    TAG = "tag"  # inside the last closed <answer>…</answer>
    LAST_LINE = "last-line"  # the last line that isn't empty
    FULL = "full"  # all of it


TOKENS_OF_MODE = {AnswerMode.TAG: ("<answer>", "</answer>")}
"""Where a tokenizer has these as tokens, a reply's text must show them, or no answer is found in it."""


def extract_answer(text: str, mode: AnswerMode) -> str | None:
    """The answer in a reply, stripped; None if there is none. Only the last MAX_TEXT_CHARS characters are read."""
    text = text[-MAX_TEXT_CHARS:].strip()
    if mode is AnswerMode.LAST_NUMBER:
        numbers = _NUMBER.findall(plain(text))
        return numbers[-1] if numbers else None
    if mode is AnswerMode.TAG:
        tags = _TAG.findall(text)
        return (tags[-1].strip() or None) if tags else None
    if mode is AnswerMode.LAST_LINE:
        lines = text.splitlines()
        return lines[-1].strip() if lines else None
    return text or None


def same_answer(given: str, expected: str) -> bool:
    """Equal as decimal numbers ("+01,000.0" is "1000"), else as text, ignoring case and repeated spaces.

    Nothing is equal to an empty text.
    """
    if not given.strip() or not expected.strip():
        return False
    left, right = _number(given), _number(expected)
    if left is not None and right is not None:
        return left == right
    return " ".join(given.split()).casefold() == " ".join(expected.split()).casefold()


def _number(text: str) -> Decimal | None:
    text = plain(text).strip()
    if len(text) > _MAX_NUMBER_CHARS or not _NUMBER.fullmatch(text):
        return None
    try:
        return Decimal(text.replace(",", ""))
    except InvalidOperation:
        return None
