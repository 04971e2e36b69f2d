"""`--set a.b=value`: one-off changes on top of a run file.

Knows the schema only to read bare words as text; whether a path exists is decided by `decode`.
"""

import re
import tomllib
from collections.abc import Sequence
from typing import Any

from astraflow.errors import ConfigError
from astraflow.runfile.schema import ANY_NAME, bare, keys
from astraflow.runfile.toml import BARE_KEY

_WORD = re.compile(r"""[^\s"'\[\]{}=#,][^"'\[\]{}=#]*""")


def parse(text: str) -> tuple[tuple[str, ...], Any]:
    """The path and the value of one `--set` argument.

    The value is TOML; a bare word is text, and so is anything for a key that holds text. Raises ConfigError.
    """
    dotted, equals, raw = text.partition("=")
    path = tuple(part.strip() for part in dotted.split("."))
    if not equals:
        raise ConfigError(f"--set {text}: no value; write --set KEY=VALUE, e.g. --set run.seed=1")
    if not all(BARE_KEY.fullmatch(part) for part in path):
        raise ConfigError(f"--set {text}: {dotted!r} is not a key; write names joined by single dots, e.g. run.seed")
    return path, _value(path, raw.strip(), text)


def apply(tree: dict[str, Any], overrides: Sequence[str]) -> tuple[list[ConfigError], dict[tuple[str, ...], str]]:
    """Change `tree` in place; later overrides win. Returns what can't be done, and which argument set which path."""
    mistakes: list[ConfigError] = []
    origins: dict[tuple[str, ...], str] = {}
    for text in overrides:
        try:
            path, value = parse(text)
            _set(tree, path, value, text)
        except ConfigError as exc:
            mistakes.append(exc)
        else:
            origins[path] = text
    return mistakes, origins


def _set(tree: dict[str, Any], path: tuple[str, ...], value: Any, text: str) -> None:
    table = tree
    for depth, part in enumerate(path[:-1], start=1):
        inner = table.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {text}: {'.'.join(path[:depth])} is a value, not a table; set it as a whole")
        table = inner
    table[path[-1]] = value


def _value(path: tuple[str, ...], raw: str, text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {raw}")
    except tomllib.TOMLDecodeError as exc:
        if raw == "" and not _is_text(path):
            raise ConfigError(f'--set {text}: the value is empty; write {".".join(path)}="" for an empty text') from exc
        if raw == "" or _WORD.fullmatch(raw) or (_is_text(path) and raw[0] not in "\"'"):
            return raw
        raise ConfigError(f"--set {text}: {raw!r} is neither a TOML value nor a plain word: {exc}") from exc
    if list(parsed) != ["value"]:
        raise ConfigError(f"--set {text}: one value is expected, not several lines")
    value = parsed["value"]
    return raw if _is_text(path) and not isinstance(value, str) else value


def _is_text(path: tuple[str, ...]) -> bool:
    return any(
        bare(key.annotation) is str
        and len(key.path) == len(path)
        and all(mine in (ANY_NAME, theirs) for mine, theirs in zip(key.path, path, strict=True))
        for key in keys()
    )
