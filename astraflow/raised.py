"""Who raised it, and where: the file and line of a user's own code, out of whatever an exception or a stack holds.

It runs nothing (`envs/usercode.py`). Invariant: a line of the user's is named before one of a package's, and that
before one of ours.
"""

import inspect
import os
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGES = "site-packages"
_MAX_CHARS = 400  # of what an exception says
_STDLIB = sysconfig.get_path("stdlib")
_PACKAGE = f"{Path(__file__).parent}{os.sep}"

Entry = tuple[str, int, str]  # file, line, function


def leaves(exc: BaseException) -> Iterator[BaseException]:
    """The exceptions that a group holds, however deep; of any other, itself."""
    if isinstance(exc, BaseExceptionGroup):
        for each in exc.exceptions:
            yield from leaves(each)
    else:
        yield exc


def describe(exc: BaseException, leaf: BaseException | None = None, *, of: Callable[..., Any] | None = None) -> str:
    """An exception and the line of the user's code that raised it, in one line of at most 500 characters.

    Args:
        leaf: which of a group's; None = its first.
        of: the user's function that was called: its own line is named if the call never got into it.
    """
    leaf = leaf or next(leaves(exc))
    raised = [leaf, exc, *(each for each in (leaf.__cause__, leaf.__context__) if each is not None)]
    stacks = [_stack_of(each) for each in raised]
    theirs = next((stack for stack in stacks if _theirs(stack)), None)
    where = line_of(of) if theirs is None and of is not None else ""
    where = where or where_in(theirs or stacks[0])
    return f"{type(leaf).__name__}: {_said(leaf)}{f' ({where})' if where else ''}"


def line_of(function: Callable[..., Any]) -> str:
    """Where a function is written."""
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
    return f"{Path(code.co_filename).name} line {code.co_firstlineno}" if code is not None else ""


def entry_of(frame: FrameType) -> Entry:
    """Where a frame is."""
    return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name


def where_in(stack: Sequence[Entry]) -> str:
    """The innermost entry that is the user's; else of a package's; else the innermost. The outermost comes first."""
    packaged = [entry for entry in stack if not entry[0].startswith(("<", _PACKAGE)) and PACKAGES in entry[0]]
    found = _theirs(stack) or packaged or list(stack)
    return _text(found[-1]) if found else ""


def _stack_of(exc: BaseException) -> list[Entry]:
    return [(entry.filename, entry.lineno or 0, "") for entry in traceback.extract_tb(exc.__traceback__)]


def _said(exc: BaseException) -> str:
    try:
        return str(exc).replace("\n", " ")[:_MAX_CHARS]
    except BaseException as inner:  # noqa: BLE001, ASYNC103 - its __str__ is the user's too
        return f"it can't say what: {type(inner).__name__}"  # noqa: ASYNC104 - no coroutine


def _theirs(stack: Sequence[Entry]) -> list[Entry]:
    return [e for e in stack if not e[0].startswith(("<", _PACKAGE, _STDLIB)) and PACKAGES not in e[0]]


def _text(entry: Entry) -> str:
    file, line, function = entry
    return f"{Path(file).name} line {line}{f', {function}' if function else ''}"
