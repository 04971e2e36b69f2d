"""What environments ask, for people: presets spelt out, and what couldn't be checked here."""

from collections.abc import Iterator, Mapping
from typing import Any

from astraflow.config import RunConfig
from astraflow.envs.code.sets import source_of
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
        if section.kind == "code" and section.args.get("dataset") and (found := _problems(section.args)):
            where = ", ".join(found.paths) or "its package"
            keys = f"question_key = {value_text(found.question_key)}, tests_key = {value_text(found.answer_key)}"
            yield f"environment {name}: dataset {section.args['dataset']} means {where}, {keys}"
        missing = set(PACKAGES.get(section.kind, ())) & set(missing_packages(section))
        if missing:
            yield (
                f"environment {name}: its arguments and questions weren't checked, {', '.join(sorted(missing))} isn't "
                f"installed here; run: {install_hint('envs')}"
            )


def hub_names(kind: str, args: Mapping[str, Any]) -> list[str]:
    """The hf:// names in the arguments of an environment."""
    if kind in ("math", "code"):
        found = _source(args) if kind == "math" else _problems(args)
        return [path for path in found.paths if path.startswith(DATASETS)] if found else []
    return [value for value in args.values() if isinstance(value, str) and value.startswith(DATASETS)]


def _source(args: Mapping[str, Any]) -> QuestionSource | None:
    """None if there is a mistake in the arguments, which is told elsewhere."""
    try:
        return source(**{key: args[key] for key in _KEYS if key in args})
    except (ConfigError, TypeError):
        return None


def _problems(args: Mapping[str, Any]) -> QuestionSource | None:
    """Likewise of environment `code`."""
    try:
        return source_of(
            dataset=args.get("dataset", ""),
            path=args.get("path", ""),
            question_key=args.get("question_key"),
            tests_key=args.get("tests_key"),
        ).source
    except (ConfigError, TypeError):
        return None
