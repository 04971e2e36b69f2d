"""Chat messages to tokens and back, from a model folder, without transformers and torch.

`tokenizers` and `jinja2` load in 0.05 s where `transformers.AutoTokenizer` takes 2 s and pulls in torch; a rollout
needs no more. It knows no multi-modal content. Invariants: `encode(template(messages))` is what
`AutoTokenizer.apply_chat_template(messages, add_generation_prompt=True)` gives (a test compares them), and every
string in or out is UTF-8 encodable: lone surrogates become U+FFFD.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from astraflow import clock
from astraflow.errors import ConfigError, EnvError
from astraflow.models.facts import END_TOKEN_FILES, end_tokens


class ChatMessageLike(Protocol):
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

    def template(self, messages: Sequence[ChatMessageLike], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """The conversation as the model reads it, ending where the reply begins.

        Args:
            tools: JSON schemas of functions that the model may call, for templates that know them.

        Raises: EnvError if the model's template refuses these messages (e.g. roles that don't alternate).
        """
        ...

    def encode(self, text: str) -> list[int]:
        """Tokens of a template's text; special tokens are recognised, none is added."""
        ...

    def text_of(self, token: int) -> str:
        """One token as a template writes it, special tokens too; "" = it has no text."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """The text without special tokens. Never raises; ids that the tokenizer doesn't know are left out."""
        ...


def load_tokenizer(folder: Path) -> ChatTokenizer:
    """The tokenizer of a model folder: tokenizer.json + chat template, or bytes for `model_type` "toy".

    Without a chat template the contents are joined by newlines, with nothing added.

    Raises: ConfigError if config.json or tokenizer.json is missing or unreadable.
    """
    config = _read_json(folder / "config.json")
    if config.get("model_type") == "toy":
        return ToyTokenizer(vocab_size=int(config["vocab_size"]), eos_token_id=int(config["eos_token_id"]))
    return FolderTokenizer(folder, config)


def utf8(text: str) -> str:
    """`text` with lone surrogates replaced by U+FFFD; surrogate pairs are joined."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class ToyTokenizer:
    """For the toy model: UTF-8 bytes modulo the vocabulary, never an end token. Decoding gives readable, lossy text."""

    def __init__(self, *, vocab_size: int = 64, eos_token_id: int = 0) -> None:
        self.vocab_size = vocab_size
        self.eos_token_ids = (eos_token_id,)
        self._letters = {token: chr(0x40 + token) for token in range(vocab_size) if token != eos_token_id}

    def template(self, messages: Sequence[ChatMessageLike], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        return "\n".join(utf8(message.content) for message in messages) or "\x01"  # never an empty prompt

    def encode(self, text: str) -> list[int]:
        spare = (self.eos_token_ids[0] + 1) % self.vocab_size
        tokens = [byte % self.vocab_size for byte in utf8(text).encode()]
        return [spare if token in self.eos_token_ids else token for token in tokens]

    def text_of(self, token: int) -> str:
        return self._letters.get(token, "")

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join([self._letters.get(token, "") for token in tokens])


class FolderTokenizer:
    """A Hugging Face folder's `tokenizer.json` and chat template."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        from tokenizers import Tokenizer

        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(
                f"{folder} has no tokenizer.json; make it once with transformers: "
                f"AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
            )
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as exc:  # the library raises no narrower class
            raise ConfigError(f"{path} can't be read: {exc}") from exc
        settings = _read_json(folder / "tokenizer_config.json", missing_ok=True)
        self._special = _special_tokens(settings)
        self._template = _chat_template(folder, settings)
        text_config = config.get("text_config", config)
        self.vocab_size = int(text_config.get("vocab_size") or self._tokenizer.get_vocab_size())
        self.eos_token_ids = end_tokens(
            {path.name: path.read_bytes() for name in END_TOKEN_FILES if (path := folder / name).is_file()}
        )

    def template(self, messages: Sequence[ChatMessageLike], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        plain = [{"role": message.role, "content": utf8(message.content)} for message in messages]
        if self._template is None:
            return "\n".join(message["content"] for message in plain)
        known = {"tools": list(tools)} if tools else {}
        return self._template(messages=plain, add_generation_prompt=True, **known, **self._special)

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(utf8(text), add_special_tokens=False).ids)

    def text_of(self, token: int) -> str:
        return self._tokenizer.decode([token], skip_special_tokens=False) if 0 <= token < self.vocab_size else ""

    def decode(self, tokens: Sequence[int]) -> str:
        known = [int(token) for token in tokens if 0 <= token < self.vocab_size]
        return utf8(self._tokenizer.decode(known, skip_special_tokens=True))


def _special_tokens(settings: dict[str, Any]) -> dict[str, str]:
    """`bos_token` and so on, as chat templates name them; written as a string or as {"content": …}."""
    found = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = settings.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            found[name] = value
    return found


def _chat_template(folder: Path, settings: dict[str, Any]) -> Callable[..., str] | None:
    """The compiled template, in the dialect that transformers defines; None if the model has none."""
    source = settings.get("chat_template")
    if isinstance(source, list):  # several named templates
        source = {entry["name"]: entry["template"] for entry in source}.get("default")
    if (folder / "chat_template.jinja").is_file():
        source = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    return None if source is None else _compile(source, str(folder))


def _compile(source: str, where: str) -> Callable[..., str]:
    from datetime import datetime

    import jinja2
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise jinja2.exceptions.TemplateError(message)

    def to_json(value: Any, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=False, **options)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.fromtimestamp(clock.wall()).strftime(form)
    unmarked = source.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    try:
        template = environment.from_string(unmarked)
    except jinja2.exceptions.TemplateError as exc:
        raise ConfigError(f"the chat template of {where} can't be compiled: {exc}") from exc

    def render(**values: Any) -> str:
        try:
            return utf8(template.render(**values))
        except (jinja2.exceptions.TemplateError, TypeError, ValueError) as exc:
            raise EnvError(f"the chat template of {where} refuses these messages: {exc}") from exc

    return render


def _read_json(path: Path, *, missing_ok: bool = False) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as exc:
        if missing_ok:
            return {}
        raise ConfigError(f"{path.parent} is no model folder: it has no {path.name}") from exc
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{path} can't be read: {exc}") from exc
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds {type(value).__name__}, expected a JSON object")
    return value
