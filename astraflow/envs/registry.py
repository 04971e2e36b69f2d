"""From [envs.<name>] of the run file to an environment: the built-in kinds, or `module:Class` of the user's own.

Nothing registers itself, and a kind's module is imported only when it is asked for. What a user can get wrong is a
ConfigError that names the nearest right thing.
"""

import importlib
import importlib.util
import inspect
from typing import Any, cast

from astraflow.config import EnvSection
from astraflow.envs.arguments import nearest
from astraflow.envs.base import Environment
from astraflow.errors import ConfigError
from astraflow.named import see_working_directory

KINDS = {
    "math": "astraflow.envs.math_env:MathEnv",
    "reasoning-gym": "astraflow.envs.reasoning_gym_env:ReasoningGymEnv",
    "tiny": "astraflow.envs.tiny_env:TinyEnv",
    "toy": "astraflow.envs.toy_env:ToyEnv",
}
PACKAGES = {"reasoning-gym": ("reasoning_gym",), "math": ("math_verify",)}
"""Packages without which a built-in kind can't be built."""


def missing_packages(section: EnvSection) -> list[str]:
    """Packages, or the user's module, that the environment needs and that can't be found; imports no environment."""
    if section.kind in KINDS:
        needed = list(PACKAGES.get(section.kind, ()))
    else:
        needed = [section.kind.partition(":")[0]]
        see_working_directory()
    return [name for name in needed if not _found(name)]


def _found(module_name: str) -> bool:
    try:
        return importlib.util.find_spec(module_name) is not None
    except (ImportError, ValueError):  # a parent package is missing; an empty name
        return False


def build_env(section: EnvSection) -> Environment:
    """The environment that the section describes.

    A class of the user's own must be importable, from a package or from a file in the working directory, and take
    keyword arguments.

    Raises: ConfigError for an unknown kind, module, class or argument, for a missing extra, and for whatever the
        constructor raises.
    """
    kind = _find_class(section.kind)
    _check_arguments(section, kind)
    try:
        env = kind(**section.args)
    except ConfigError as exc:
        raise ConfigError(f"environment {section.kind}: {exc}") from exc
    except Exception as exc:  # users' code
        raise ConfigError(f"environment {section.kind} can't be built from {section.args}: {exc!r}") from exc
    present = dir(env)  # unlike hasattr it computes no property: `size` may read a file
    missing = [name for name in ("size", "task", "run", "close") if name not in present]
    if missing:
        raise ConfigError(
            f"environment {section.kind} has no {', '.join(missing)}; subclass astraflow.envs.SingleTurnEnv "
            "or implement astraflow.envs.Environment"
        )
    return cast(Environment, env)


def _find_class(kind: str) -> type[Any]:
    if kind not in KINDS and ":" not in kind:
        raise ConfigError(f"unknown environment kind {kind!r}{nearest(kind, KINDS)}; or module:Class of your own")
    module_name, _, class_name = KINDS.get(kind, kind).partition(":")
    if kind not in KINDS:
        see_working_directory()
    try:
        module = importlib.import_module(module_name)
    except Exception as exc:  # users' code runs at import
        raise ConfigError(f"environment {kind}: module {module_name!r} can't be imported: {exc!r}") from exc
    found = getattr(module, class_name, None)
    if not inspect.isclass(found):
        classes = [name for name, value in vars(module).items() if inspect.isclass(value)]
        raise ConfigError(
            f"environment {kind}: {module_name} has no class {class_name!r}{nearest(class_name, classes)}"
        )
    return found


def _check_arguments(section: EnvSection, kind: type[Any]) -> None:
    parameters = list(inspect.signature(kind).parameters.values())
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
    named = {p.name: p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL, p.POSITIONAL_ONLY)}
    for name in section.args:
        if name not in named and not open_ended:
            raise ConfigError(f"environment {section.kind} takes no argument {name!r}{nearest(name, named)}")
    needed = [name for name, p in named.items() if p.default is p.empty and name not in section.args]
    if needed:
        raise ConfigError(f"environment {section.kind} needs args.{', args.'.join(needed)}")
