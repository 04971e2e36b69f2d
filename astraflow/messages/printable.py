"""Texts that people will read, made safe to print: what a process sends may hold sequences that move a terminal's
cursor, change its title, or write lines that look like somebody else's.

It cuts nothing. Invariant: the result has no control characters, no line breaks, no marks that turn the direction of
text, and no halves of characters.
"""

import unicodedata
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
_SPACES = str.maketrans(dict.fromkeys("\t\n\v\f\r\x85\u2028\u2029", " "))
_HARMFUL = ("Cc", "Cf", "Cs", "Zl", "Zp")
_JOINERS = "\u200c\u200d"  # scripts and emoji need them


def printable(text: str) -> str:
    """The text on one line; what can't be printed is replaced."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        "\ufffd" if unicodedata.category(char) in _HARMFUL and char not in _JOINERS else char
        for char in text.translate(_SPACES)
    )


def printable_lines(text: str) -> str:
    """The text with its own line breaks; what else can't be printed is replaced, and tabs are spaces."""
    return "\n".join(printable(line) for line in text.replace("\r\n", "\n").split("\n"))


def with_printable_texts(value: T) -> T:
    """The same message with all of its texts printable, keys included."""
    cleaned: Any = value
    match value:
        case str():
            cleaned = value if type(value) is not str else printable(value)  # enums have no other texts than ours
        case dict():
            cleaned = {with_printable_texts(key): with_printable_texts(item) for key, item in value.items()}
        case list():
            cleaned = [with_printable_texts(item) for item in value]
        case tuple():
            cleaned = tuple(with_printable_texts(item) for item in value)
        case msgspec.Struct():
            fields = {name: getattr(value, name) for name in value.__struct_fields__}
            changed = {name: new for name, old in fields.items() if (new := with_printable_texts(old)) != old}
            cleaned = msgspec.structs.replace(value, **changed) if changed else value
    return cleaned  # type: ignore[no-any-return]
