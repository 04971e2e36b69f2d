"""Objects that a run file names as `module:name`: the user's own, from a package or a file in the working directory.

It builds and checks nothing. Invariant: whatever goes wrong, users' code included, is a ConfigError.
"""

import importlib
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from astraflow.errors import ConfigError


def see_working_directory() -> None:
    """A console script doesn't have it on its path; at the end, so that it shadows nothing."""
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))


def load_named(name: str, *, what: str) -> Any:
    """The object called `module:name`. Raises ConfigError if there is none; `what` begins its message."""
    module_name, _, attribute = name.partition(":")
    see_working_directory()
    try:
        module = importlib.import_module(module_name)
    except Exception as exc:  # users' code runs at import
        raise ConfigError(f"{what} {name}: module {module_name!r} can't be imported: {exc!r}") from exc
    if not hasattr(module, attribute):
        close = get_close_matches(attribute, vars(module), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"{what} {name}: {module_name} has no {attribute!r}{hint}")
    return getattr(module, attribute)
