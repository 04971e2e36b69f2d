"""Chat messages to tokens and back, from a model folder, without transformers and torch.

`tokenizers` and `jinja2` load in 0.05 s where `transformers.AutoTokenizer` takes 2 s and pulls in torch; a rollout
needs no more. It knows no multi-modal content. Invariants: `encode(template(messages))` is what
`AutoTokenizer.apply_chat_template(messages, add_generation_prompt=True)` gives (tests compare them), but that control
tokens spelled in a message are letters like any other; and every string in or out is UTF-8 encodable: lone surrogates
become U+FFFD.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from astraflow.config import SHOWN_TOKENS
from astraflow.errors import ConfigError
from astraflow.models.control_tokens import ControlTokens, Span
from astraflow.models.facts import END_TOKEN_FILES, end_tokens
from astraflow.models.quoted import CONTENT, WRITTEN, Quoted, joined_by, quoted, written
from astraflow.models.tokenizer_files import read_json, read_templates, read_tokenizer

_MAX_TOLD = 32  # control tokens of one reply that are told from letters; a reply has a handful


class _ChatMessageLike(Protocol):
    """`envs.base.ChatMessage`, seen from a layer below it."""

    @property
    def role(self) -> str: ...

    @property
    def content(self) -> str: ...


class ChatTokenizer(Protocol):
    """What turns a conversation into a prompt, and sampled tokens into text."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a reply, ascending."""
        ...

    @property
    def vocab_size(self) -> int:
        """Width of the model's output: token ids are below it."""
        ...

    def template(self, messages: Sequence[_ChatMessageLike], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """The conversation as the model reads it, ending where the reply begins.

        A Quoted if a message may spell control tokens: it, and every piece cut from it, tells them from the template's.

        Args:
            tools: JSON schemas of functions that the model may call, for templates that know them.

        Raises: EnvError if the model's template refuses these messages (e.g. roles that don't alternate).
        """
        ...

    def encode(self, text: str) -> list[int]:
        """Tokens of a template's text; special tokens are recognised, none is added."""
        ...

    def encode_behind(self, text: str, at: int) -> list[int] | None:
        """Tokens of `text[at:]` as they are in the whole text; None if they can't be told from those before."""
        ...

    def text_of(self, token: int) -> str:
        """One token as a template writes it, special tokens too; "" = it has no text."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """The text without special tokens, but for those that are shown. Never raises; unknown ids are left out."""
        ...

    def told(self, tokens: Sequence[int], text: str) -> str:
        """Their decoded `text` as one that tells which control tokens in it are tokens, and which are only spelled.

        In a message of the policy that sampled them, the former are control tokens again.
        """
        ...


def load_tokenizer(folder: Path, *, shown: Collection[str] = SHOWN_TOKENS) -> ChatTokenizer:
    """The tokenizer of a model folder: tokenizer.json + chat template, or bytes for `model_type` "toy".

    Without a chat template the contents are joined by newlines, with nothing added.

    Args: shown: special tokens that stay in decoded text.
    Raises: ConfigError if config.json or tokenizer.json is missing or unreadable.
    """
    config = read_json(folder / "config.json")
    if config.get("model_type") == "toy":
        return ToyTokenizer(vocab_size=int(config["vocab_size"]), eos_token_id=int(config["eos_token_id"]))
    return FolderTokenizer(folder, config, shown)


def utf8(text: str) -> str:
    """`text` with lone surrogates replaced by U+FFFD; surrogate pairs are joined."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class ToyTokenizer:
    """For the toy model: UTF-8 bytes modulo the vocabulary, never an end token. Decoding gives readable, lossy text."""

    def __init__(self, *, vocab_size: int = 64, eos_token_id: int = 0) -> None:
        self.vocab_size = vocab_size
        self.eos_token_ids = (eos_token_id,)
        self._letters = {token: chr(0x40 + token) for token in range(vocab_size) if token != eos_token_id}

    def template(self, messages: Sequence[_ChatMessageLike], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        return "\n".join(utf8(message.content) for message in messages) or "\x01"  # never an empty prompt

    def encode(self, text: str) -> list[int]:
        spare = (self.eos_token_ids[0] + 1) % self.vocab_size
        tokens = [byte % self.vocab_size for byte in utf8(text).encode()]
        return [spare if token in self.eos_token_ids else token for token in tokens]

    def encode_behind(self, text: str, at: int) -> list[int] | None:
        return self.encode(text[at:])

    def text_of(self, token: int) -> str:
        return self._letters.get(token, "")

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join([self._letters.get(token, "") for token in tokens])

    def told(self, tokens: Sequence[int], text: str) -> str:
        return text


class FolderTokenizer:
    """A Hugging Face folder's `tokenizer.json` and chat template."""

    def __init__(self, folder: Path, config: dict[str, Any], shown: Collection[str] = SHOWN_TOKENS) -> None:
        from astraflow.models.chat_template import ChatTemplate  # jinja2, which an install without extras lacks

        files = read_tokenizer(folder, config)
        self._tokenizer = files.tokenizer
        sources = {name: utf8(source) for name, source in read_templates(folder, files.settings).items()}
        if sources and "default" not in sources:
            raise ConfigError(f"{folder} has chat templates {', '.join(sorted(sources))}, but none named default")
        self._templates = {
            name: ChatTemplate(source, where=str(folder), special=files.special)
            for name, source in sources.items()
            if name in ("default", "tool_use")
        }
        literals = "\0".join(template.literals for template in self._templates.values())
        self._control = ControlTokens(self._tokenizer, files.settings, literals)
        self._added = {at: token.content for at, token in self._tokenizer.get_added_tokens_decoder().items()}
        self._hidden = {
            at
            for at, token in self._tokenizer.get_added_tokens_decoder().items()
            if token.special and token.content not in shown
        }
        self._shows_some = any(
            token.special and token.content in shown for token in self._tokenizer.get_added_tokens_decoder().values()
        )
        self._cleans = _cleans_up(self._tokenizer, files.settings)
        text_config = config.get("text_config", config)
        self.vocab_size = int(text_config.get("vocab_size") or self._tokenizer.get_vocab_size())
        known = end_tokens(
            {path.name: path.read_bytes() for name in END_TOKEN_FILES if (path := folder / name).is_file()}
        )
        # A token that no file gives a number gets the next one, behind the model's own: no engine can sample it.
        own = self._tokenizer.token_to_id(files.special["eos_token"]) if "eos_token" in files.special else None
        self.eos_token_ids = tuple(sorted({*known, *(() if own is None else (own,))}))

    @property
    def has_template(self) -> bool:
        return bool(self._templates)

    def template(self, messages: Sequence[_ChatMessageLike], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        dicts = [{"role": utf8(message.role), "content": _clean(message.content)} for message in messages]
        contents = [message["content"] for message in dicts]
        marked = any(map(self._control.may_be_in, [*contents, *_strings(tools)]))
        if not self._templates:
            return joined_by(written("\n"), quoted(contents)) if marked else "\n".join(contents)
        template = self._templates["tool_use" if tools and "tool_use" in self._templates else "default"]
        return template.render(dicts, tools, marked=marked)

    @property
    def left_out(self) -> frozenset[str]:
        """Special tokens that decoded text doesn't show."""
        return frozenset(self._added[token] for token in self._hidden)

    def encode(self, text: str) -> list[int]:
        if isinstance(text, Quoted):
            return self._control.encode(text)[0]
        return list(self._tokenizer.encode(utf8(text), add_special_tokens=False).ids)

    def encode_behind(self, text: str, at: int) -> list[int] | None:
        ids, spans = self._encode(text)
        spans = [self._without_blanks(text, token, span) for token, span in zip(ids, spans, strict=True)]
        if any(start < at < end for start, end in spans):  # a token that crosses the place
            ids, spans = self._control.encode(text, breaks=[at])
            if not self._control.breaks_add_nothing:
                return None
        return [token for token, (start, _) in zip(ids, spans, strict=True) if start >= at]

    def text_of(self, token: int) -> str:
        if token in self._added:
            return self._added[token]
        return self._tokenizer.decode([token], skip_special_tokens=False) if 0 <= token < self.vocab_size else ""

    def decode(self, tokens: Sequence[int]) -> str:
        hidden = self._hidden if self._shows_some else ()  # else the library leaves them out, in its own way
        known = [int(token) for token in tokens if 0 <= token < self.vocab_size and token not in hidden]
        text = self._tokenizer.decode(known, skip_special_tokens=not self._shows_some)
        return utf8(_cleaned_up(text) if self._cleans else text)

    def told(self, tokens: Sequence[int], text: str) -> str:
        places = [at for at, token in enumerate(tokens) if token in self._control.ids and token not in self._hidden]
        marks = [CONTENT] * len(text)
        for at in places[:_MAX_TOLD]:
            content, behind = self._added[tokens[at]], len(self.decode(tokens[:at]))
            start = text.find(content, behind)
            if start >= 0 and not text[behind:start].strip():  # decoders may put a space before it
                marks[start : start + len(content)] = [WRITTEN] * len(content)
        return Quoted(text, "".join(marks)) if WRITTEN in marks else text

    def _encode(self, text: str) -> tuple[list[int], list[Span]]:
        if isinstance(text, Quoted):
            return self._control.encode(text)
        found = self._tokenizer.encode(utf8(text), add_special_tokens=False)
        return list(found.ids), list(found.offsets)

    def _without_blanks(self, text: str, token: int, span: Span) -> Span:
        """Added tokens can take the white space beside them; it is none of their own."""
        if token not in self._added:
            return span
        start, end = span
        there = text[start:end]
        return (end - len(there.lstrip()), start + len(there.rstrip())) if there.strip() else span


def _clean(text: str) -> str:
    """What `told` gave is clean already."""
    return text if isinstance(text, Quoted) else utf8(text)


def _strings(value: Any) -> Iterator[str]:
    """Every string in a JSON value."""
    if isinstance(value, str):
        yield utf8(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def _cleans_up(tokenizer: Any, settings: Mapping[str, Any]) -> bool:
    """Decoded text loses the spaces before punctuation: never for BPE, whose spaces are its own."""
    despite = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
    if not settings.get("clean_up_tokenization_spaces", False):
        return False
    return type(tokenizer.model).__name__ != "BPE" or bool(settings.get(despite, False))


def _cleaned_up(text: str) -> str:
    for ending in (".", "?", "!", ","):
        text = text.replace(f" {ending}", ending)
    text = text.replace(" ' ", "'")
    for ending in ("n't", "'m", "'s", "'ve", "'re"):
        text = text.replace(f" {ending}", ending)
    return text
