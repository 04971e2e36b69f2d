"""The expected answer of a question: from what a file holds to what replies are compared with. Pure.

Invariant: what `gold` returns is never empty, a missing value or half an expression.
"""

import re

from astraflow.envs.notation import balanced, closing, last_box, plain, unwrapped

# How programs write a missing value; "none" and \text{None} are answers that people give.
_MISSING = frozenset(
    ("None", "NONE", "nan", "NaN", "NAN", "null", "Null", "NULL", "<NA>", "N/A", "n/a", "#N/A", "NaT", "[]", "{}", "()")
)
_DOLLARS = re.compile(r"(?<!\\)\$")
_PRICE = re.compile(r"(?<!\\)\$\s?-?[\d.]")
_IN_DOLLARS = re.compile(r"(\$\$?)([^$]+)\1")
_FRACTION = re.compile(r"\\[dt]?frac(?![A-Za-z])\s*")
_ARGUMENT = re.compile(r"\s*(\{|\\[A-Za-z]+|[^\s{}\\])")
_WORD_PAIRS = ((r"\\left(?![A-Za-z])", r"\\right(?![A-Za-z])"), (r"\\begin\{", r"\\end\{"))
_PAIRS = ((r"\\\(", r"\\\)"), (r"\\\[", r"\\\]"), (r"\\\{", r"\\\}"))


def gold(text: str) -> str:
    """The expected answer in an answer as it is published.

    Of GSM8K's the part behind the last `####`; of a solution with a box what is in the last one; without the dollars
    around it.
    Raises: ValueError, which says what is wrong, if nothing is left that a reply could be compared with.
    """
    found = text.rpartition("####")[2].strip()
    boxed = last_box(found)
    if boxed == "":
        raise ValueError(f"is {text[-60:]!r}, whose box is empty or isn't closed")
    found = boxed or found
    if match := _IN_DOLLARS.fullmatch(found):
        found = match[2].strip()
    if not found:
        raise ValueError(f"is {text[-60:]!r}, of which nothing is left")
    if wrong := _wrong_with(found):
        raise ValueError(f"is {found[:60]!r}, {wrong}")
    return found


def _wrong_with(text: str) -> str:
    """Why it can't be compared with; "" if it can."""
    bare = unwrapped(plain(text)).strip()
    if text in _MISSING:
        return "a missing value"
    if not balanced(text):
        return "with a brace that isn't closed or opened"
    pairs = _WORD_PAIRS if r"\left" in text else _WORD_PAIRS + _PAIRS  # \left\{ … \right. is closed by a point
    if any(_count(text, left) != _count(text, right) for left, right in pairs):
        return "with a bracket of LaTeX that isn't closed or opened"
    if len(_DOLLARS.findall(text)) % 2 and not _PRICE.search(text):
        return "with a dollar sign that isn't closed"
    if any(_argument_end(text, _argument_end(text, m.end())) < 0 for m in _FRACTION.finditer(text)):
        return "a fraction without denominator"
    if len(bare) > 1 and bare.endswith(("=", "^", "_", "\\")):
        return "which breaks off"
    if not re.search(r"\w|\\[A-Za-z]+|\\\{\s*\\\}|[^\x00-\x7f]|[-+*/<>=]", bare):
        return "in which there is nothing to compare"
    return ""


def _count(text: str, command: str) -> int:
    return len(re.findall(rf"(?<!\\)(?:\\\\)*{command}", text))


def _argument_end(text: str, start: int) -> int:
    """Where the argument of a LaTeX command ends that begins at `start`; -1 if there is none, or `start` is -1."""
    match = _ARGUMENT.match(text, start) if start >= 0 else None
    if match is None or match[1] != "{":
        return match.end() if match else -1
    return closing(text, match.end() - 1) + 1 or -1
