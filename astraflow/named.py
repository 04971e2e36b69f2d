"""From a name in the run file to an object: a built-in kind, or `module:name` of the user's own.

Nothing registers itself, and a kind's module is imported only when it is asked for. Users' modules are found in
packages and in the working directory. Invariant: whatever goes wrong, users' code included, is a ConfigError.
"""

import asyncio
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from astraflow.errors import ConfigError
from astraflow.raised import describe, line_of

USERS_ERRORS = (Exception, SystemExit, GeneratorExit, asyncio.CancelledError)
"""What users' code may raise where it is called on this thread; a KeyboardInterrupt may be a person's."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error message: `; did you mean 'chain_sum'?`, or the known names if none is near."""
    names = sorted(known)
    listed = f"; known: {', '.join(names[:40])}{', …' if len(names) > 40 else ''}" if names else "; it takes none"
    return did_you_mean(name, names) or listed


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'chain_sum'?`, or "" if none is near."""
    found = nearest_name(name, known)
    return f"; did you mean {found!r}?" if found else ""


def nearest_name(name: str, known: Iterable[str]) -> str:
    """The known name that is probably meant: one that looks like `name`, or begins so; "" if there is none."""
    names = list(known)
    found = get_close_matches(name, names, n=1, cutoff=0.5)
    found = found or [other for other in names if len(name) > 2 and other.startswith(name)]
    return found[0] if found else ""


def module_found(name: str) -> bool:
    """Whether a package, or a file in the working directory, can be imported; imports nothing."""
    _see_working_directory()
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # a parent package is missing; an empty name
        return False


def build(what: str, kind: str, args: Mapping[str, Any], kinds: Mapping[str, str]) -> Any:
    """An object of the class that `kind` names, made with `args`.

    Args:
        what: how error messages call it, e.g. "environment".
        kinds: the built-in ones, name → module:Class. Other classes must be importable, from a package or from a file
            in the working directory, and take keyword arguments.
    Raises: ConfigError for an unknown kind, module, class or argument, and for whatever the constructor raises.
    """
    found = _find_class(what, kind, kinds)
    _check_arguments(f"{what} {kind}", found, args)
    try:
        return found(**args)
    except ConfigError as exc:
        raise ConfigError(f"{what} {kind}: {exc}") from exc
    except USERS_ERRORS as exc:
        raise ConfigError(
            f"{what} {kind} can't be built from {dict(args)}: {describe(exc, of=found.__init__)}"
        ) from exc


def _find_class(what: str, kind: str, kinds: Mapping[str, str]) -> type[Any]:
    """The class behind a kind. Raises ConfigError."""
    if kind not in kinds and ":" not in kind:
        raise ConfigError(f"unknown {what} kind {kind!r}{nearest(kind, kinds)}; or module:Class of your own")
    name = kinds.get(kind, kind)
    found = load_named(name, what=what)
    if not inspect.isclass(found):
        module_name, _, class_name = name.partition(":")
        raise ConfigError(f"{what} {kind}: {module_name} has no class {class_name!r}")
    return found


def arguments_of(kind: type[Any]) -> dict[str, inspect.Parameter]:
    """What the constructor takes by name."""
    parameters = inspect.signature(kind).parameters.values()
    return {p.name: p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL, p.POSITIONAL_ONLY)}


def _check_arguments(what: str, kind: type[Any], args: Mapping[str, Any]) -> None:
    open_ended = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(kind).parameters.values())
    named = arguments_of(kind)
    for name in args:
        if name not in named and not open_ended:
            raise ConfigError(f"{what} takes no argument {name!r}{nearest(name, named)}")
    needed = [name for name, p in named.items() if p.default is p.empty and name not in args]
    if needed:
        raise ConfigError(f"{what} needs args.{', args.'.join(needed)}")


def _see_working_directory() -> None:
    """A console script doesn't have it on its path; at the end, so that it shadows nothing."""
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))


def load_named(name: str, *, what: str) -> Any:
    """The object called `module:name`. Raises ConfigError if there is none; `what` begins its message."""
    module_name, _, attribute = name.partition(":")
    _see_working_directory()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        if exc.name != module_name:
            raise ConfigError(f"{what} {name}: module {module_name!r} can't be imported: {describe(exc)}") from exc
        hint = f"; did you mean {module_name.removesuffix('.py')}:{attribute}?" if module_name.endswith(".py") else ""
        raise ConfigError(
            f"{what} {name}: there is no module {module_name!r}, in no package and not in {Path.cwd()}{hint}"
        ) from exc
    except SyntaxError as exc:
        raise ConfigError(f"{what} {name}: {exc.filename} line {exc.lineno}: {exc.msg}") from exc
    except USERS_ERRORS as exc:
        raise ConfigError(f"{what} {name}: module {module_name!r} can't be imported: {describe(exc)}") from exc
    if not hasattr(module, attribute):
        raise ConfigError(f"{what} {name}: {module_name} has no {attribute!r}{nearest(attribute, _own(module))}")
    return getattr(module, attribute)


def load_function(name: str, *, what: str, args: Mapping[str, Any]) -> Callable[..., Any]:
    """The function called `module:name`, which is called with one value and `args` by name.

    Raises: ConfigError if there is none, it is async, or its signature doesn't take them.
    """
    found = load_named(name, what=what)
    line = line_of(found)
    whose = f"{what} {name}{f' ({line})' if line else ''}"
    if not callable(found) or inspect.isclass(found):
        raise ConfigError(f"{what} {name} is a {type(found).__name__}, expected a function")
    if inspect.iscoroutinefunction(found):
        raise ConfigError(f"{whose} is async, and nobody awaits it; make it a def")
    try:
        inspect.signature(found).bind(None, **args)
    except TypeError as exc:
        given = f"one value and {', '.join(args)} by name" if args else "one value"
        raise ConfigError(f"{whose} is called with {given}, but {exc}") from exc
    except ValueError:  # one written in C tells no signature
        pass
    return found  # type: ignore[no-any-return]  # callable, as seen above


def load_file(file: Path) -> ModuleType:
    """A Python file as a module; it may import its neighbours. Raises ConfigError."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None or not file.is_file():
        raise ConfigError(f"{file} is no Python file (looked in {Path.cwd()})")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module  # dataclasses and pickles look there
    sys.path.insert(0, str(file.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except USERS_ERRORS as exc:
        raise ConfigError(f"{file} can't be imported: {describe(exc)}") from exc
    return module


def _own(module: ModuleType) -> list[str]:
    """What the module itself offers: no private names, no modules that it imports."""
    return [key for key, value in vars(module).items() if not key.startswith("_") and not inspect.ismodule(value)]
