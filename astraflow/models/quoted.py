"""Text that remembers which of its characters are content and which were written by a chat template.

A message may spell `<|im_end|>` in ordinary letters, and a template writes the same letters to end a turn: rendered
text alone can't tell them apart. So contents enter a template as `Quoted`, and every operation that keeps characters
keeps their marks. What an operation makes of content in a way that isn't followed here counts as content altogether.
It knows neither templates nor tokens. Invariant: a Quoted equals, and hashes as, the plain string of its characters,
and has one mark for each.
"""

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any, SupportsIndex

_LISTS = (list, tuple, KeysView, ValuesView, ItemsView)
_NOTHING = ""
CONTENT, WRITTEN = "1", "0"  # marks of a character


class Quoted(str):
    """A string with one mark per character. Made without marks, it is content from end to end."""

    marks: str

    def __new__(cls, text: object = "", marks: str | None = None) -> "Quoted":
        made = super().__new__(cls, str(text))
        made.marks = CONTENT * len(made) if marks is None else marks
        assert len(made.marks) == len(made)
        return made

    @property
    def plain(self) -> str:
        """The characters alone."""
        return str.__str__(self)

    def as_in(self, text: str) -> "Quoted":
        """`text`, which differs at most in white space around it, with these marks."""
        bare, lead = self.strip(), len(text) - len(text.lstrip())
        marks = CONTENT * lead + bare.marks
        return Quoted(text, marks + CONTENT * (len(text) - len(marks)))

    def __str__(self) -> "Quoted":
        return self

    def __iter__(self) -> Iterator[str]:
        return (self[at] for at in range(len(self)))

    def __getitem__(self, key: SupportsIndex | slice) -> "Quoted":
        return Quoted(str.__getitem__(self, key), self.marks[key])

    def __add__(self, other: str) -> "Quoted":
        return joined_by(_NOTHING, [self, other]) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> "Quoted":
        return joined_by(_NOTHING, [other, self]) if isinstance(other, str) else NotImplemented

    def __mul__(self, times: SupportsIndex) -> "Quoted":
        return Quoted(str.__mul__(self, times), self.marks * times)

    __rmul__ = __mul__

    def __mod__(self, values: Any) -> "Quoted":
        return Quoted(str.__mod__(self, values))

    def __rmod__(self, form: str) -> "Quoted":
        return Quoted(str.__mod__(form, self.plain))

    def strip(self, chars: str | None = None) -> "Quoted":
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None) -> "Quoted":
        return self[len(self) - len(str.lstrip(self, chars)) :]

    def rstrip(self, chars: str | None = None) -> "Quoted":
        return self[: len(str.rstrip(self, chars))]

    def removeprefix(self, prefix: str) -> "Quoted":
        return self[len(prefix) :] if self.startswith(prefix) else self

    def removesuffix(self, suffix: str) -> "Quoted":
        return self[: len(self) - len(suffix)] if suffix and self.endswith(suffix) else self

    def _pieces(self, plain: Iterable[str]) -> list[str]:
        """These pieces, which stand in this text one behind the other, with their marks."""
        found: list[str] = []
        at = 0
        for piece in plain:
            at = str.find(self, piece, at)
            found.append(self[at : at + len(piece)])
            at += len(piece)
        return found

    def _between(self, plain: list[str], gap: int) -> list[str]:
        """These pieces, with `gap` characters between one and the next."""
        found: list[str] = []
        at = 0
        for piece in plain:
            found.append(self[at : at + len(piece)])
            at += len(piece) + gap
        return found

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        pieces = str.split(self, sep, maxsplit)
        return self._pieces(pieces) if sep is None else self._between(pieces, len(sep))

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        pieces = str.rsplit(self, sep, maxsplit)
        return self._pieces(pieces) if sep is None else self._between(pieces, len(sep))

    def splitlines(self, keepends: bool = False) -> list[str]:
        whole = self._between(str.splitlines(self, keepends=True), 0)
        if keepends:
            return whole
        return [line[: len(bare)] for line, bare in zip(whole, str.splitlines(self), strict=True)]

    def partition(self, sep: str) -> tuple[str, str, str]:
        before, found, behind = self._between(list(str.partition(self, sep)), 0)
        return before, found, behind

    def rpartition(self, sep: str) -> tuple[str, str, str]:
        before, found, behind = self._between(list(str.rpartition(self, sep)), 0)
        return before, found, behind

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> "Quoted":
        if not old:  # between all characters: nothing that a template needs
            return Quoted(str.replace(self.plain, old, _plain(new), count))
        return joined_by(new, self.split(old, count))

    def join(self, items: Iterable[str], /) -> "Quoted":
        return joined_by(self, list(items))

    def lower(self) -> "Quoted":
        return self._recased(str.lower(self))

    def upper(self) -> "Quoted":
        return self._recased(str.upper(self))

    def title(self) -> "Quoted":
        return self._recased(str.title(self))

    def capitalize(self) -> "Quoted":
        return self._recased(str.capitalize(self))

    def _recased(self, text: str) -> "Quoted":
        return Quoted(text, self.marks if len(text) == len(self) else None)


def joined(pieces: Iterable[str]) -> str:
    """The pieces as one string; Quoted if one of them is."""
    kept = list(pieces)
    text = "".join(kept)
    if not any(isinstance(piece, Quoted) for piece in kept):
        return text
    return Quoted(text, "".join(marks_of(piece) for piece in kept))


def joined_by(separator: str, items: list[str]) -> "Quoted":
    """As `separator.join(items)`, always Quoted."""
    pieces = [piece for item in items for piece in (separator, item)][1:]
    return Quoted("".join(pieces), "".join(marks_of(piece) for piece in pieces))


def marks_of(text: str) -> str:
    """One mark per character; a plain string was written by the template."""
    return text.marks if isinstance(text, Quoted) else WRITTEN * len(text)


def written(text: str) -> "Quoted":
    """A plain string as a Quoted."""
    return text if isinstance(text, Quoted) else Quoted(text, WRITTEN * len(text))


def quoted(value: Any) -> Any:
    """Every string in a JSON value as content; keys of objects too."""
    if isinstance(value, str):
        return value if isinstance(value, Quoted) else Quoted(value)
    if isinstance(value, Mapping):
        return {quoted(key): quoted(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [quoted(item) for item in value]
    return value


def plain(value: Any) -> Any:
    """The same value without marks."""
    if isinstance(value, str):
        return _plain(value)
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    return [plain(item) for item in value] if isinstance(value, list) else value


def has_content(value: Any) -> bool:
    """Some string in the value has marks."""
    if isinstance(value, str):
        return isinstance(value, Quoted)
    if isinstance(value, Mapping):
        return any(has_content(key) or has_content(item) for key, item in value.items())
    return isinstance(value, _LISTS) and any(has_content(item) for item in value)


def _plain(text: str) -> str:
    return text.plain if isinstance(text, Quoted) else text
