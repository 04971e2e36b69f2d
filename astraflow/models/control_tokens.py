"""Encoding text in which the same letters are a control token where the template wrote them, and letters in content.

Control tokens are those that the library calls special, and added tokens that the chat template itself writes
(`<tool_call>`, `</think>`); it is transformers' own rule. A second tokenizer shares the model but knows each control
token by an alias, as long as its text, of a Tangut letter for each letter and a private symbol for each symbol; where
the template wrote one, its alias stands in what is encoded. So splitting, prefixes and offsets are those of the first
tokenizer, and content finds no control token to match. Where the model itself would make one of plain letters (a
vocabulary may hold `</s>` as a piece), the letters are kept apart. It renders nothing. Invariant: without control
tokens in content, ids are those of the first tokenizer.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from astraflow.errors import ConfigError
from astraflow.models.quoted import CONTENT, Quoted

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Span = tuple[int, int]
_FIRST, _LAST = 0x17000, 0x187F7  # Tangut: letters that no normalizer changes or joins
_SYMBOLS = 0xF0000  # of private use: no letters, so that words beside them end there
_BREAK = chr(_LAST)  # an alias for nothing: keeps what is left and right of it apart


class ControlTokens:
    """The control tokens of a tokenizer."""

    def __init__(self, tokenizer: "Tokenizer", settings: Mapping[str, Any], literals: str) -> None:
        """Args: settings: tokenizer_config.json; literals: what the chat templates write of their own."""
        listed = settings.get("chat_control_tokens")
        special_too = not tokenizer.encode_special_tokens  # else the library never matches them
        added = sorted(tokenizer.get_added_tokens_decoder().items())
        self._added = {
            token.content: (at, token)
            for at, token in added
            if (special_too and token.special)
            or (token.content in listed if isinstance(listed, list) else _is_written(token.content, literals))
        }
        self.ids = frozenset(at for at, _ in self._added.values())
        if len(self._added) >= _LAST - _FIRST:
            raise ConfigError(f"a tokenizer with {len(self._added)} control tokens is more than can be told apart")
        longest_first = sorted(self._added, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._starts = {text[:at] for text in self._added for at in range(1, len(text))}
        self._ends = {text[at:] for text in self._added for at in range(1, len(text))}
        self._longest = max(map(len, self._added), default=0)
        self._normalizer = tokenizer.normalizer if any(token.normalized for _, token in self._added.values()) else None
        self._aliases = {text: _alias(text, at) for at, text in enumerate(self._added)}
        self._reserved = str.maketrans(dict.fromkeys([*"".join(self._aliases.values()), _BREAK], "\ufffd"))
        self._shadow = self._shadow_of(tokenizer, added)
        self.breaks_add_nothing = not "".join(_tried(self._shadow, f"{_BREAK}x")[1][1:]).startswith(("▁", "Ġ"))
        """No space is put before what stands behind a break."""

    def may_be_in(self, text: str) -> bool:
        """The text spells a control token, or a part of one at its start or end that a template could complete."""
        if not self._added or not text:
            return False
        whole = text if self._normalizer is None else f"{text}\0{self._normalizer.normalize_str(text)}"
        bare = text.strip()
        return (
            self._pattern.search(whole) is not None
            or any(bare[-size:] in self._starts or text[-size:] in self._starts for size in range(1, self._longest))
            or any(bare[:size] in self._ends or text[:size] in self._ends for size in range(1, self._longest))
        )

    def encode(self, text: str, breaks: Iterable[int] = ()) -> tuple[list[int], list[Span]]:
        """Ids, and where each stands in `text`; contents of a Quoted are plain letters.

        Args: breaks: places that no token may cross.
        """
        aliased, cuts = self._aliased(text), set(breaks)
        for _ in range(3):  # a broken piece may hold a shorter one
            ids, spans = self._encode(aliased, cuts)
            made = [span for token, span in zip(ids, spans, strict=True) if token in self._ids]
            if not made:
                break
            cuts |= {at for start, end in made for at in range(start + 1, end)}
        kept = [(token, span) for token, span in zip(ids, spans, strict=True) if token not in self._ids]
        return [self._own.get(token, token) for token, _ in kept], [span for _, span in kept]

    def _aliased(self, text: str) -> str:
        """The text with the template's control tokens as aliases; letters that aliases are made of are replaced."""
        marks = text.marks if isinstance(text, Quoted) else ""
        plain = text.plain if isinstance(text, Quoted) else text
        pieces, behind = [], 0
        for start, end in self._written(plain, marks):
            pieces += [plain[behind:start].translate(self._reserved), self._aliases[plain[start:end]]]
            behind = end
        return "".join([*pieces, plain[behind:].translate(self._reserved)])

    def _written(self, text: str, marks: str) -> Iterator[Span]:
        """Where the template wrote control tokens: no letter of them is content."""
        at = 0
        while found := self._pattern.search(text, at):
            own = CONTENT not in marks[found.start() : found.end()]
            if own:
                yield found.span()
            at = found.end() if own else found.start() + 1

    def _encode(self, aliased: str, cuts: set[int]) -> tuple[list[int], list[Span]]:
        places = sorted(cuts)
        parts = [aliased[start:end] for start, end in zip([0, *places], [*places, len(aliased)], strict=True)]
        found = self._shadow.encode(_BREAK.join(parts), add_special_tokens=False)
        ids, spans = [], []
        for token, (start, end) in zip(found.ids, found.offsets, strict=True):
            before = sum(place + nth < start for nth, place in enumerate(places)) if places else 0
            if token != self._break:
                ids.append(token)
                spans.append((start - before, end - before))
        return ids, spans

    def _shadow_of(self, tokenizer: "Tokenizer", added: list[tuple[int, Any]]) -> "Tokenizer":
        """The same tokenizer, with aliases for control tokens."""
        from tokenizers import AddedToken, Tokenizer

        shadow = Tokenizer(tokenizer.model)
        if tokenizer.normalizer is not None:
            shadow.normalizer = tokenizer.normalizer
        if tokenizer.pre_tokenizer is not None:
            shadow.pre_tokenizer = tokenizer.pre_tokenizer
        shadow.encode_special_tokens = tokenizer.encode_special_tokens
        own: dict[str, int] = {}
        tokens = []
        for at, token in added:
            name = self._aliases.get(token.content, token.content)
            own[name] = at
            flags = {
                flag: getattr(token, flag) for flag in ("single_word", "lstrip", "rstrip", "normalized", "special")
            }
            tokens.append(AddedToken(name, **flags))
        shadow.add_tokens([*tokens, AddedToken(_BREAK, normalized=False)])
        self._own = {shadow.token_to_id(name): at for name, at in own.items()}
        unknown, _ = _tried(shadow, chr(_LAST - 1))  # the model's own answer to text that it doesn't know
        self._ids = self.ids - self._own.keys() - set(unknown)
        self._break = shadow.token_to_id(_BREAK)
        return shadow


def _alias(text: str, number: int) -> str:
    return "".join(chr((_FIRST if letter.isalnum() or letter == "_" else _SYMBOLS) + number) for letter in text)


def _tried(tokenizer: "Tokenizer", text: str) -> tuple[list[int], list[str]]:
    """Ids and tokens of a text; none if the model has none for it, nor one for what it doesn't know."""
    try:
        found = tokenizer.encode(text, add_special_tokens=False)
    except Exception:  # noqa: BLE001 - the library raises no narrower class
        return [], []
    return list(found.ids), list(found.tokens)


def _is_written(text: str, literals: str) -> bool:
    """The template writes this added token; white space stands in every template as ordinary text."""
    return text in literals and not text.isspace()
