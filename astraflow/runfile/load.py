"""Reading a run file: TOML, overrides, schema, cross-checks; all mistakes that can be found are told at once.

The only place that turns a path into a RunConfig. Invariant: what it returns can be started on this machine, as far as
that can be known without starting it.
"""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from astraflow.config import RunConfig, SamplingSection
from astraflow.errors import ConfigError
from astraflow.learners.losses.presets import expand
from astraflow.paths import user_path
from astraflow.runfile import overrides as override
from astraflow.runfile.broken_toml import Broken, salvage
from astraflow.runfile.checks import check
from astraflow.runfile.decode import Where, decode
from astraflow.runfile.environments import check_environments
from astraflow.runfile.toml import dumps
from astraflow.runfile.unknown import UNKNOWN, holds_unknown, settled


def load(path: str | Path, overrides: Sequence[str] = (), *, environments: bool = True) -> RunConfig:
    """The checked config of a run file.

    Args:
        overrides: `--set` arguments, `a.b=value`; the last one wins.
        environments: also build every environment whose packages are installed, to check its arguments.
    Raises: ConfigError, which names every mistake's key, place, what was got and what is expected.
    """
    return load_text(_read(user_path(path)), file=str(path), overrides=overrides, environments=environments)


def load_text(text: str, *, file: str, overrides: Sequence[str] = (), environments: bool = True) -> RunConfig:
    """Likewise, of a run file's text; errors say that it is in `file`."""
    try:
        tree, broken = tomllib.loads(text), list[Broken]()
    except tomllib.TOMLDecodeError:
        tree, broken = salvage(text)
    unreadable = [ConfigError(f"{file} is not valid TOML: {each.problem}") for each in broken]
    if any(not each.path for each in broken):  # what belongs where can't be said
        raise _all_of(unreadable, file)
    mistakes, origins = override.apply(tree, overrides)
    mistakes = [*unreadable, *mistakes]
    where = Where(file=file, text=text, overrides=origins)
    _bind_defaults(tree)
    config, wrong = decode(tree, where)
    mistakes += [*wrong, *settled([check(config, where)])]
    if environments:
        mistakes += settled([check_environments(config, where)])
    if mistakes:
        raise _all_of(mistakes, file)
    return config


def _all_of(mistakes: Sequence[ConfigError], file: str) -> ConfigError:
    """One error that tells every mistake, each once."""
    told = list(dict.fromkeys(map(str, mistakes)))
    if len(told) == 1:
        return ConfigError(told[0])
    return ConfigError("\n  ".join([f"{len(told)} mistakes in {file}:", *told]))


def resolved(config: RunConfig) -> str:
    """The config as TOML with every default filled in; `load` reads it back equal."""
    return dumps(msgspec.to_builtins(config))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as exc:
        raise ConfigError(f"run file {path} does not exist") from exc
    except IsADirectoryError as exc:
        raise ConfigError(f"run file {path} is a folder; name the TOML file in it") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"run file {path} is not UTF-8 text: {exc}") from exc
    except OSError as exc:
        raise ConfigError(f"run file {path} can't be read: {exc.strerror}") from exc


def _bind_defaults(tree: Mapping[str, Any]) -> None:
    """Defaults that depend on other keys: a loss's preset, and no prefetch without staleness."""
    policies = tree.get("policies")
    for policy in policies.values() if isinstance(policies, Mapping) else ():
        trainer = policy.get("trainer") if isinstance(policy, Mapping) else None
        if not isinstance(trainer, dict):
            continue
        if holds_unknown([trainer.get("max_staleness"), trainer.get("loss"), policy.get("sampling")]):
            policy["trainer"] = UNKNOWN  # its defaults can't be known
            continue
        if trainer.get("max_staleness") == 0:
            trainer.setdefault("prefetch", 0)
        sampling = policy.get("sampling")
        longest = sampling.get("max_new_tokens") if isinstance(sampling, Mapping) else None
        expand(trainer, max_new_tokens=SamplingSection().max_new_tokens if longest is None else longest)
