"""What the small files of a model folder say, derived once for everybody: end tokens, vocabulary, context, refusals.

It reads JSON, by name and bytes, so that a replica that got the files over the bus needs no folder; no weights are
looked at, and neither torch nor transformers is imported, unless config.json leaves out a size that only the family's
defaults give (`derived.py`). Shapes of layers are `derived.py`'s too.
Invariant: facts exist only for models that can be used: nothing quantised, nothing that runs code of its own.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from astraflow.errors import ConfigError

TOY = "toy"
END_TOKEN_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.json",
)
_LENGTH_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
_SWITCHING_ROPE = ("longrope", "su")
_QUANTISED = ("quantization_config", "compression_config")


@dataclass(frozen=True, kw_only=True)
class _ModelFacts:
    """What any causal language model has. `config` is config.json as it is, in none of its dialects settled."""

    model_type: str
    vocab_size: int
    context_length: int  # up to here one set of rotary frequencies holds for all positions
    eos_token_ids: tuple[int, ...]
    config: Mapping[str, Any]


class _Added(msgspec.Struct):
    id: int
    content: str


class _Tokenizer(msgspec.Struct):
    """What is asked of a tokenizer.json first; it may have megabytes, and the rest is skipped."""

    added_tokens: list[_Added] = []


def read_facts(files: Mapping[str, bytes]) -> _ModelFacts:
    """Facts from a model's small files. Raises ConfigError if config.json is missing, or no such model can be used."""
    config = read_json(files, "config.json")
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise ConfigError("the model's config.json names no model_type")
    for key in _QUANTISED:
        for part in _parts(config):
            if part.get(key):
                raise ConfigError(_quantised(key, part[key]))
    return _ModelFacts(
        model_type=model_type,
        vocab_size=_vocabulary(config) or _derived(config, "vocab_size"),
        context_length=_context(config) or _derived(config, "max_position_embeddings"),
        eos_token_ids=end_tokens(files),
        config=config,
    )


def read_json(files: Mapping[str, bytes], name: str, *, missing_ok: bool = False) -> dict[str, Any]:
    """A file that holds an object. Raises ConfigError."""
    if name not in files:
        if missing_ok:
            return {}
        raise ConfigError(f"the model has no {name}, only {', '.join(sorted(files)) or 'no files at all'}")
    try:
        value = json.loads(files[name])
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"the model's {name} is not JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise ConfigError(f"the model's {name} holds a {type(value).__name__}, expected an object")
    return value


def end_tokens(files: Mapping[str, bytes]) -> tuple[int, ...]:
    """Tokens that end a reply, ascending: all that config.json (and a text_config in it), generation_config.json and
    the tokenizer's files name. Engines stop at them, rollouts end replies at them. Of `files` END_TOKEN_FILES count.

    Raises: ConfigError for something that is no token.
    """
    found: set[int] = set()
    for part in _parts(read_json(files, "config.json", missing_ok=True)):
        found |= _ids(part.get("eos_token_id"), "config.json")
    generation = read_json(files, "generation_config.json", missing_ok=True)
    found |= _ids(generation.get("eos_token_id"), "generation_config.json")
    own = _tokenizers_end(files)
    return tuple(sorted(found | ({own} if own is not None else set())))


def needs_remote_code(config: Mapping[str, Any]) -> bool:
    """Whether the folder brings Python of its own. transformers may know the family all the same (`derived.py`)."""
    return bool(config.get("auto_map"))


def rotary(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The tables of rotary settings, of any dialect; several where kinds of layers differ."""
    for key in ("rope_parameters", "rope_scaling"):
        table = config.get(key)
        if isinstance(table, dict):
            nested = [value for value in table.values() if isinstance(value, dict)]
            yield from nested or [table]


def _parts(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The config, and that of the text model inside it."""
    text = config.get("text_config")
    return [config, text] if isinstance(text, dict) else [config]


def _ids(value: Any, file: str) -> set[int]:
    """Of null, a number or a list of numbers; a negative one means none."""
    values = value if isinstance(value, list) else [] if value is None else [value]
    for item in values:
        if not isinstance(item, int) or isinstance(item, bool):
            raise ConfigError(f"eos_token_id of the model's {file} is {value!r}, expected a token id or a list of them")
    return {item for item in values if item >= 0}


def _tokenizers_end(files: Mapping[str, bytes]) -> int | None:
    """The id of the tokenizer's end token; None if it has none."""
    settings = read_json(files, "tokenizer_config.json", missing_ok=True)
    token = settings.get("eos_token")
    if "added_tokens_decoder" not in settings:  # as transformers: the file of old counts where settings list no tokens
        token = read_json(files, "special_tokens_map.json", missing_ok=True).get("eos_token", token)
    if isinstance(token, dict):
        token = token.get("content")
    if not isinstance(token, str):
        return None
    return next((number for number in _numbers(files, settings, token) if number is not None), None)


def _numbers(files: Mapping[str, bytes], settings: Mapping[str, Any], token: str) -> Iterator[int | None]:
    """A token's id by every file that may say it, the one that counts first."""
    if "tokenizer.json" in files:
        try:
            added = msgspec.json.decode(files["tokenizer.json"], type=_Tokenizer).added_tokens
        except msgspec.DecodeError as exc:
            raise ConfigError(f"the model's tokenizer.json can't be read: {exc}") from exc
        yield next((entry.id for entry in added if entry.content == token), None)
    for number, entry in (settings.get("added_tokens_decoder") or {}).items():
        if isinstance(entry, dict) and entry.get("content") == token:
            yield int(number)
    data = read_json(files, "tokenizer.json", missing_ok=True)
    vocabulary = (data.get("model") or {}).get("vocab")
    if isinstance(vocabulary, dict):
        yield vocabulary.get(token)
    elif isinstance(vocabulary, list):  # of pieces and their scores
        yield next((number for number, (piece, *_) in enumerate(vocabulary) if piece == token), None)
    yield read_json(files, "added_tokens.json", missing_ok=True).get(token)


def _vocabulary(config: Mapping[str, Any]) -> int:
    return _size(config, ("vocab_size",))


def _context(config: Mapping[str, Any]) -> int:
    longest = _size(config, _LENGTH_KEYS)
    for part in _parts(config):
        for table in rotary(part):
            # Frequencies of all positions change where a sequence outgrows the original length, those of keys that are
            # cached too: what was sampled before can't be computed once more. So sequences end there.
            if (table.get("rope_type") or table.get("type")) in _SWITCHING_ROPE:
                key = "original_max_position_embeddings"
                original = part.get(key) or table.get(key)
                longest = min(longest, original) if isinstance(original, int) and original > 0 else longest
    return longest


def _size(config: Mapping[str, Any], keys: Sequence[str]) -> int:
    """The first positive number, of the text model before the whole; 0 if there is none. Raises ConfigError."""
    for part in reversed(_parts(config)):
        for key in keys:
            value = part.get(key)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
                raise ConfigError(f"{key} in the model's config.json is {value!r}, expected a positive number")
            return value
    return 0


def _derived(config: Mapping[str, Any], key: str) -> int:
    """What config.json leaves to the family."""
    try:
        from astraflow.models.derived import derived_config
    except ModuleNotFoundError as exc:
        raise ConfigError(f"the model's config.json has no {key}, and {exc.name} isn't installed to know it") from exc
    value = getattr(derived_config(config).get_text_config(), key, None)
    if not isinstance(value, int) or value <= 0:
        raise ConfigError(f"the model's config.json has no {key}, and its family gives none")
    return value


def _quantised(key: str, settings: Any) -> str:
    how = settings.get("quant_method") if isinstance(settings, dict) else None
    return (
        f"the model is quantised ({how or key}): its weights can't be trained or served here; use the folder that it "
        "was made from, or save a dequantised one with transformers"
    )
