"""Where a reply ends by a stop string: looked for by the requester, so that every engine has them, in the same way.

An engine samples on until it is told to cancel; what it sampled behind the end is dropped and never was said. Pure.
Invariant: the end is the first token with which a stop string stands in the text, however the tokens come in pieces.
"""

from collections.abc import Callable, Sequence
from itertools import takewhile

_BYTES_OF_A_LETTER = 4  # that may be tokens of their own
_SLACK = 8  # tokens whose text depends on those before them


class StopStrings:
    """Looks for the stop strings of one call. Args: least: tokens before which none counts."""

    def __init__(self, stop: Sequence[str], decode: Callable[[Sequence[int]], str], *, least: int = 0) -> None:
        self._stop = tuple(stop)
        self._decode = decode
        self._least = least
        self._window = _BYTES_OF_A_LETTER * max(map(len, stop)) + _SLACK
        self._seen: list[int] = []  # as many of the newest tokens as a stop string can begin in
        self._count = 0
        self.letters = 0  # at the end of the text, from the stop string on; 0 = none was found

    def end_in(self, tokens: Sequence[int]) -> int | None:
        """How many of the next tokens are the reply's, the last of them ending it; None: it goes on."""
        row, before = [*self._seen, *tokens], len(self._seen)
        found = self._end_in(row, before) if self._first(self._decode(row)) is not None else None
        self._seen = row[-self._window :]
        self._count += len(tokens)
        return found

    def _end_in(self, row: list[int], before: int) -> int | None:
        text = self._decode(row[:before])
        for end in range(before + 1, len(row) + 1):
            longer = self._decode(row[:end])
            alike = _alike(text, longer)  # a letter whose bytes come one by one is another one in the end
            start = self._first(longer, behind=alike)
            if start is not None and self._count + end - before >= self._least:
                self.letters = len(longer) - start
                return end - before
            text = longer
        return None

    def _first(self, text: str, *, behind: int = 0) -> int | None:
        """Where the first stop string begins that ends in what stands behind so many letters."""
        found = [text.find(stop, max(0, behind - len(stop) + 1)) for stop in self._stop]
        return min((at for at in found if at >= 0), default=None)


def _alike(one: str, other: str) -> int:
    """With how many letters both begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
