"""What a model folder's files say of its tokenizer, read as transformers reads them (5.24).

    tokenizer.json, tokenizer_config.json, special_tokens_map.json, added_tokens.json   → `read_tokenizer`
    chat_template.jinja, additional_chat_templates/, tokenizer_config.json, …           → `read_templates`

Invariant: state that a tokenizer.json happened to be saved with, truncation, padding, post-processing, has no effect.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astraflow.errors import ConfigError
from astraflow.models.folder import TEMPLATES_FOLDER
from astraflow.models.tokenizer_classes import DEFAULTS, class_of, rebuilt

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, kw_only=True)
class _TokenizerFiles:
    """A tokenizer and what is said of it."""

    tokenizer: "Tokenizer"
    special: Mapping[str, str]  # `bos_token` and so on, as chat templates name them
    settings: Mapping[str, Any]  # tokenizer_config.json


def read_tokenizer(folder: Path, config: Mapping[str, Any]) -> _TokenizerFiles:
    """Raises: ConfigError if there is no tokenizer.json, or a file can't be read."""
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(
            f"{folder} has no tokenizer.json; make it once with transformers: "
            f"AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
        )
    settings = read_json(folder / "tokenizer_config.json", missing_ok=True)
    saved = read_json(path)
    declared = settings.get("tokenizer_class") or config.get("tokenizer_class") or ""
    byte_level = '"ByteLevel"' in _read_text(path)
    name = class_of(str(config.get("model_type", "")), str(declared), byte_level=byte_level)
    try:
        values = _values(folder, settings, saved, DEFAULTS.get(name, {}))
        tokenizer = rebuilt(name, saved["model"], values.named) if name else Tokenizer.from_file(str(path))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        _add_tokens(tokenizer, values)
        if name == "Qwen2Tokenizer":
            tokenizer.add_tokens([_special(str(token)) for token in [*values.tokens.values(), *values.extra]])
        tokenizer.encode_special_tokens = bool(settings.get("split_special_tokens", False))
    except Exception as exc:  # the library raises no narrower class
        raise ConfigError(f"{path} can't be read: {exc}") from exc
    special = {key: str(token) for key, token in values.tokens.items()}
    return _TokenizerFiles(tokenizer=tokenizer, special=special, settings=settings)


@dataclass(frozen=True)
class _Values:
    named: dict[str, Any]  # the settings, special tokens of the class and of other files included
    tokens: dict[str, Any]  # named special tokens, str or AddedToken
    extra: list[Any]  # special tokens without a name
    added: dict[int, Any]  # AddedToken by id


def _values(
    folder: Path, settings: Mapping[str, Any], saved: Mapping[str, Any], defaults: Mapping[str, str | None]
) -> _Values:
    """Special and added tokens, of whichever files hold them. Files of old count where the settings list no tokens."""
    from tokenizers import AddedToken

    named = {**defaults, **settings}
    if "additional_special_tokens" in named and not named.get("extra_special_tokens"):
        named["extra_special_tokens"] = named.pop("additional_special_tokens")
    added: dict[int, Any] = {}
    if "added_tokens_decoder" in settings:
        added = {int(key): AddedToken(**_flags(token)) for key, token in settings["added_tokens_decoder"].items()}
    else:
        for key, value in read_json(folder / "special_tokens_map.json", missing_ok=True).items():
            if key == "extra_special_tokens" and isinstance(value, list):
                value = [*(named.get(key) or []), *value]
            named[key] = value
        special = {_text(named[key]) for key in _NAMED if named.get(key)}
        special |= {_text(token) for token in _listed(named.get("extra_special_tokens"))}
        for text, at in read_json(folder / "added_tokens.json", missing_ok=True).items():
            added[at] = AddedToken(text, normalized=text not in special, special=text in special)
        for token in saved.get("added_tokens", ()):
            added[token["id"]] = AddedToken(**_flags(token))
    padding = saved.get("padding")
    if padding and padding.get("pad_token"):
        named.setdefault("pad_token", padding["pad_token"])
    by_text = {str(token): token for token in added.values()}
    tokens = {key: _token(value) for key, value in _named_tokens(named)}
    tokens = {key: by_text.get(str(token), token) if key in _NAMED else token for key, token in tokens.items()}
    extra = [_token(token) for token in _listed(named.get("extra_special_tokens"))]
    return _Values(named, tokens, extra, added)


def _named_tokens(named: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Special tokens by name, in the order in which they get ids; those of the model's own come last."""
    own_names = [key for key in named if key.endswith("_token") and key not in _NAMED]
    for key in (*_NAMED, *own_names):
        if isinstance(named.get(key), str | dict):
            yield key, named[key]
    own = named.get("extra_special_tokens")
    yield from own.items() if isinstance(own, dict) else ()


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else []


def _token(value: Any) -> Any:
    """A token as files write it, "…" or {"content": "…", flags}, as the library takes it."""
    from tokenizers import AddedToken

    if not isinstance(value, dict):
        return str(value)
    return AddedToken(**{"special": True, **_flags(value)})


def _text(value: Any) -> str:
    return str(value["content"]) if isinstance(value, dict) else str(value)


def _flags(token: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: token[key]
        for key in ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
        if key in token
    }


def _special(text: str) -> "AddedToken":
    from tokenizers import AddedToken

    return AddedToken(text, special=True)


def _add_tokens(tokenizer: "Tokenizer", values: _Values) -> None:
    """Those that tokenizer.json lacks, or has with other flags."""
    there = tokenizer.get_added_tokens_decoder()
    as_there = {repr(token) for token in there.values()}
    missing = [token for _, token in sorted(values.added.items()) if repr(token) not in as_there]
    known = {token.content for token in there.values()} | {str(token) for token in missing}
    for token in [*values.tokens.values(), *values.extra]:
        if str(token) not in known and token not in missing:
            missing.append(token)
    names = {str(token) for token in values.tokens.values()}
    wanted = [_special(token) if isinstance(token, str) else token for token in missing]
    for token in wanted:
        if token.content in names:
            token.special = True
    tokenizer.add_tokens(wanted)


def read_templates(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """The sources of a model's chat templates by name; "default" is the one for plain chats. Empty = it has none.

    Files of their own go before tokenizer_config.json, chat_template.json, which is for processors, comes last.
    """
    found: dict[str, str] = {}
    if (folder / "chat_template.jinja").is_file():
        found["default"] = _read_text(folder / "chat_template.jinja")
    for path in sorted((folder / TEMPLATES_FOLDER).glob("*.jinja")):
        found[path.stem] = _read_text(path)
    if found:
        return found
    given = settings.get("chat_template")
    if given is None:
        given = read_json(folder / "chat_template.json", missing_ok=True).get("chat_template")
    if isinstance(given, list):
        given = {entry["name"]: entry["template"] for entry in given}
    named = given if isinstance(given, dict) else {} if given is None else {"default": given}
    wrong = [name for name, source in named.items() if not isinstance(source, str)]
    if wrong:
        raise ConfigError(f"{folder}: chat template {wrong[0]} is {type(named[wrong[0]]).__name__}, expected text")
    return named


def read_json(path: Path, *, missing_ok: bool = False) -> dict[str, Any]:
    """A JSON object. Raises ConfigError if it isn't one, or if the file is missing and mustn't."""
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


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{path} can't be read: {exc}") from exc
