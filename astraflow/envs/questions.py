"""From rows of question files to questions with their expected answers. It knows no format and no grading.

Invariant: every question has text, and every expected answer something that a reply can be compared with; a row of
which that isn't true is named, never guessed at.
"""

import json
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from astraflow.envs.gold import gold
from astraflow.envs.question_files import Columns, read_rows
from astraflow.errors import ConfigError, RowError
from astraflow.models.tokenizer import utf8
from astraflow.named import nearest_name

_log = logging.getLogger(__name__)

_USUAL = {
    "question_key": ("question", "problem", "prompt", "messages", "query", "input", "instruction"),
    "answer_key": (
        "answer",
        "reward_model.ground_truth",
        "ground_truth",
        "final_answer",
        "expected_answer",
        "solution",
    ),
}
_ROLES = {"human": "user", "gpt": "assistant", "developer": "system"}
_WRITTEN_OUT = 20  # digits in front of the point, or zeros behind it
_LEVELS = 4  # of nested keys in an error message
_TOLD = 40  # names of keys in an error message


@dataclass(frozen=True)
class Question:
    """A question as it is asked, and what answers it.

    Attributes:
        question: the last message of the user.
        answers: any of them is right.
        before: messages in front of it, as (role, text).
    """

    question: str
    answers: tuple[str, ...]
    before: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How rows are read.

    Attributes:
        question_key, answer_key: a key or column; `a.b` is b in a; `a|b` is a, or b where there is no a.
        question_strip, answer_strip: what matches is taken out of the text; None = nothing.
        skip_bad: leave out rows that can't be used instead of refusing them.
    """

    question_key: str
    answer_key: str
    question_strip: re.Pattern[str] | None = None
    answer_strip: re.Pattern[str] | None = None
    skip_bad: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        return (*self.question_key.split("|"), *self.answer_key.split("|"))


def pattern(key: str, text: str) -> re.Pattern[str] | None:
    """A regular expression of the run file; None if it is empty. Raises ConfigError."""
    if not text:
        return None
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as exc:
        raise ConfigError(f"{key} is {text!r}, which is no regular expression: {exc}") from exc


def read_questions(files: Sequence[Path], reading: Reading) -> tuple[Question, ...]:
    """All questions of the files, in order.

    Raises: ConfigError, naming file and line, for a missing or unreadable file, a missing key, a value that is no
        question or no answer, or files without questions.
    """
    questions, wrong = [], []
    for path in files:
        for where, row in read_rows(path, reading.keys, _has(reading)):
            try:
                questions.append(_question(row, reading))
            except RowError as exc:
                wrong.append(f"{where}: {exc}")
    if wrong and (not reading.skip_bad or not questions):
        others = len(wrong) - 1
        more = f"; and {others} more row{'s' * (others > 1)} can't be used" if others else ""
        skip = "" if reading.skip_bad or not questions else "; args.bad_rows = 'skip' leaves such rows out"
        raise ConfigError(f"{wrong[0]}{more}{skip}")
    if wrong:
        _log.warning("rows of question files left out", extra={"rows": len(wrong), "first": wrong[0]})
    if not questions:
        raise ConfigError(f"question file {', '.join(map(str, files))} holds no questions")
    return tuple(questions)


def _has(reading: Reading) -> Callable[[Mapping[str, Any]], bool]:
    roots = {key for name in reading.keys for key in (name, name.partition(".")[0])}
    return lambda row: any(root in row for root in roots)


def _question(row: Mapping[str, Any], reading: Reading) -> Question:
    asked = _value(row, reading.question_key, "question_key")
    *before, (_, question) = _messages(asked, reading.question_key)
    question = _without(question, reading.question_strip)
    if not question:
        raise RowError(f"{reading.question_key} is {asked!r:.60}, expected text")
    expected = _value(row, reading.answer_key, "answer_key")
    answers = [_without(text, reading.answer_strip) for text in _answers(expected, reading.answer_key)]
    return Question(utf8(question), tuple(_gold(text, reading.answer_key) for text in answers), tuple(before))


def _without(text: str, stripped: re.Pattern[str] | None) -> str:
    return (stripped.sub("", text) if stripped else text).strip()


def _gold(text: str, key: str) -> str:
    try:
        return gold(utf8(text))
    except ValueError as exc:
        raise RowError(f"{key} {exc}") from exc


def _value(row: Mapping[str, Any], keys: str, argument: str) -> Any:
    """What the row holds under the first of the keys that it has."""
    values = [value for key in keys.split("|") for value in _under(row, key)]
    if not values:
        raise RowError(_no_key(row, keys, argument))
    return next((value for value in values if value is not None), None)


def _under(row: Any, key: str) -> list[Any]:
    """The value of a dotted key, in a list; empty if there is none. JSON in a text is looked into."""
    if isinstance(row, Mapping) and key in row:
        return [row[key]]
    first, dot, rest = key.partition(".")
    if isinstance(row, list | tuple) and first.isdecimal():
        inner = [row[int(first)]] if int(first) < len(row) else []
    else:
        inner = [row[first]] if isinstance(row, Mapping) and dot and first in row else []
    if not dot:
        return inner
    return [value for each in inner for value in _under(_parsed(each), rest)]


def _parsed(value: Any) -> Any:
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(value, parse_float=Decimal)
        except (ValueError, RecursionError):
            return value
    return value


def _no_key(row: Mapping[str, Any], keys: str, argument: str) -> str:
    names = list(row.names) if isinstance(row, Columns) else list(_dotted(row))
    kind = "column" if isinstance(row, Columns) else "key"
    near = nearest_name(keys, names) or next((name for name in _USUAL[argument] if name in names), "")
    hint = f"; did you mean {near!r}?" if near else ""
    known = f"{', '.join(names[:_TOLD])}{', …' if len(names) > _TOLD else ''}"
    return f"has no {kind} {keys!r}{hint}; set args.{argument} to one of: {known or 'none, the row is empty'}"


def _dotted(row: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key, value in row.items():
        if isinstance(value, Mapping) and value and above.count(".") < _LEVELS:
            yield from _dotted(value, f"{above}{key}.")
        else:
            yield f"{above}{key}"


def _messages(value: Any, key: str) -> list[tuple[str, str]]:
    """(role, text) up to the last message of the user; a text is one message."""
    listed = _parsed(value) if isinstance(value, str) and value.lstrip().startswith("[{") else value
    if isinstance(listed, list | tuple) and listed and all(isinstance(message, Mapping) for message in listed):
        messages = [_message(message, key) for message in listed]
        while messages and messages[-1][0] != "user":  # what comes behind it is a solution
            messages.pop()
        if not messages:
            raise RowError(f"{key} is {value!r:.60}, a conversation without a message of the user")
        return messages
    if isinstance(value, Mapping):
        names = ", ".join(f"{key}.{name}" for name in value)
        raise RowError(f"{key} is a table; set args.question_key to one of: {names}")
    return [("user", _text(value, key, "text, or a list of messages"))]


def _message(message: Mapping[str, Any], key: str) -> tuple[str, str]:
    role = message.get("role", message.get("from"))
    content = message.get("content", message.get("value"))
    if isinstance(content, list) and all(isinstance(part, Mapping) and "text" in part for part in content):
        content = "".join(str(part["text"]) for part in content)
    if not isinstance(role, str) or not isinstance(content, str):
        raise RowError(f"{key} holds the message {dict(message)!r:.80}, expected role and content as text")
    role = _ROLES.get(role, role)
    if role not in ("system", "user", "assistant", "tool"):
        raise RowError(f"{key} holds a message of {role!r:.40}, expected system, user, assistant or tool")
    return role, utf8(content)


def _answers(value: Any, key: str) -> list[str]:
    """The texts of one answer or of several, any of which is right."""
    if isinstance(value, str) and value.lstrip().startswith('["'):
        value = _parsed(value)
    if isinstance(value, Mapping):
        names = ", ".join(f"{key}.{name}" for name in value)
        raise RowError(f"{key} is a table; set args.answer_key to one of: {names}")
    if not isinstance(value, list | tuple):
        return [_text(value, key, "text, a number, true, false or a list of them")]
    if not value:
        raise RowError(f"{key} is [], expected one answer or more")
    return [_text(one, key, "a list of texts or numbers") for one in value]


def _text(value: Any, key: str, expected: str) -> str:
    """A scalar as people write it: 72.0 is 72."""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        value = Decimal(repr(value))
    if isinstance(value, Decimal) and value.is_finite():
        if abs(value.adjusted()) > _WRITTEN_OUT:
            return str(value)
        return f"{value.quantize(Decimal(1)) if value == value.to_integral_value() else value:f}"
    raise RowError(f"{key} is {value!r:.60}, expected {expected}")
