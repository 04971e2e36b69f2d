"""What environments ask, for people: presets spelt out, and what couldn't be checked here."""

from collections.abc import Iterator, Mapping
from typing import Any

from astraflow.config import RunConfig
from astraflow.envs.presets import QuestionSource, source
from astraflow.envs.registry import PACKAGES, missing_packages
from astraflow.errors import ConfigError
from astraflow.extras import install_hint
from astraflow.models.hub_datasets import DATASETS
from astraflow.runfile.toml import value_text

_KEYS = ("dataset", "path", "question_key", "answer_key", "question_strip", "answer_strip")


def question_sets(config: RunConfig) -> Iterator[str]:
    """A sentence for each preset, and for each environment whose arguments couldn't be checked."""
    for name, section in config.envs.items():
        if section.kind == "math" and section.args.get("dataset") and (found := _source(section.args)):
            paths = found.paths[0] if len(found.paths) == 1 else list(found.paths)
            meant = {"path": paths} | {key: getattr(found, key) for key in _KEYS[2:]}
            told = ", ".join(f"{key} = {value_text(value)}" for key, value in meant.items() if value)
            yield f"environment {name}: dataset {section.args['dataset']} means {told}"
        missing = set(PACKAGES.get(section.kind, ())) & set(missing_packages(section))
        if missing:
            yield (
                f"environment {name}: its arguments and questions weren't checked, {', '.join(sorted(missing))} isn't "
                f"installed here; run: {install_hint('envs')}"
            )


def hub_names(kind: str, args: Mapping[str, Any]) -> list[str]:
    """The hf:// names in the arguments of an environment."""
    if kind == "math":
        found = _source(args)
        return [path for path in found.paths if path.startswith(DATASETS)] if found else []
    return [value for value in args.values() if isinstance(value, str) and value.startswith(DATASETS)]


def _source(args: Mapping[str, Any]) -> QuestionSource | None:
    """None if there is a mistake in the arguments, which is told elsewhere."""
    try:
        return source(**{key: args[key] for key in _KEYS if key in args})
    except (ConfigError, TypeError):
        return None
