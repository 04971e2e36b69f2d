"""Runs inside a sandbox, another than the program's: makes the tests' calls, and prints which of them passed.

Standard input is the line to the program. Names that a test uses and nobody defines are functions of the program: a
call goes over the line and a plain value comes back, so no object of the program's ever meets a comparison here.
Invariant: whatever comes over the line, the verdict is of the values alone.
"""

import ast
import builtins
import contextlib
import json
import math
import os
import select
import sys
import time
from collections.abc import Callable
from typing import Any

from inside_solver import decoded, encoded  # type: ignore[import-not-found]  # they lie beside each other there

_LONGEST = 4 << 20  # of an answer
_CLOSE = 1e-6  # floats


class Program:
    """The program on the other end. After an answer that was late, too long or none it isn't asked any more."""

    def __init__(self, case_s: float) -> None:
        self._case_s = case_s
        self._buffer = b""
        self._gone = ""

    def call(self, name: str, args: Any, kwargs: Any) -> Any:
        """The value of a call. Raises what the program raised, by its name; RuntimeError if there is no answer."""
        if self._gone:
            raise RuntimeError(self._gone)
        try:
            self._send(json.dumps({"name": name, "args": encoded(args), "kwargs": encoded(kwargs)}).encode() + b"\n")
            answer = json.loads(self._line())
        except (OSError, ValueError, RecursionError) as exc:
            self._gone = str(exc) or type(exc).__name__
            raise RuntimeError(self._gone) from None
        if "error" in answer:
            kind = getattr(builtins, str(answer["error"]), RuntimeError)
            known = isinstance(kind, type) and issubclass(kind, Exception)
            raise (kind if known else RuntimeError)(str(answer.get("said", "")))
        return decoded(answer["value"])

    def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(0, view) :]

    def _line(self) -> bytes:
        until = time.monotonic() + self._case_s
        while b"\n" not in self._buffer:
            left = until - time.monotonic()
            if left <= 0 or not select.select([0], [], [], left)[0]:
                raise OSError(f"no answer within {self._case_s:g} s")
            chunk = os.read(0, 1 << 16)
            if not chunk:
                raise OSError("the program is gone")
            self._buffer += chunk
            if len(self._buffer) > _LONGEST:
                raise OSError("an answer is too long")
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


def main() -> None:
    """Make every test and print the verdict."""
    sys.set_int_max_str_digits(0)
    with open("tests.json", encoding="utf-8") as file:
        tests = json.load(file)
    program = Program(tests["case_s"])
    cases = _scripts(tests, program) if tests["scripts"] else _calls(tests, program)
    passed, first = 0, ""
    for case in cases:
        said = _failure(case)
        passed += not said
        first = first or said
        if said and tests["stop_early"]:
            break
    sys.stdout.write(json.dumps({"passed": passed, "total": len(cases), "first": first}))


def _failure(case: Callable[[], None]) -> str:
    """What went wrong; "" if nothing did."""
    silent = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    try:
        with silent, contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
            case()
    except BaseException as exc:  # noqa: BLE001, ASYNC103 - a test's way to say no, and whatever a value does in it
        return f"{type(exc).__name__}: {exc}"[:200]  # noqa: ASYNC104
    return ""


def _scripts(tests: Any, program: Program) -> list[Callable[[], None]]:
    names: dict[str, Any] = {"__name__": "tests"}
    exec(tests["setup"], names)
    for name in tests["names"] or _unknown(tests["scripts"], names):
        names[name] = _remote(program, name)
    return [_script(text, names) for text in tests["scripts"]]


def _script(text: str, names: dict[str, Any]) -> Callable[[], None]:
    def run() -> None:
        exec(compile(text, "test.py", "exec"), names)

    return run


def _unknown(scripts: list[str], names: dict[str, Any]) -> list[str]:
    """Names that the scripts read and that neither they nor Python define."""
    nodes = [node for text in scripts for node in ast.walk(ast.parse(text))]
    read = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    written = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    written |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    written |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            written |= {(each.asname or each.name).partition(".")[0] for each in node.names}
    return sorted(read - written - set(dir(builtins)) - set(names))


def _calls(tests: Any, program: Program) -> list[Callable[[], None]]:
    function = _remote(program, tests["names"][0])

    def case(args: Any, expected: Any) -> Callable[[], None]:
        def run() -> None:
            value = function(*args)
            if not any(_same(value, each) for each in expected):
                raise AssertionError(f"{str(args)[:80]} gave {str(value)[:60]}, expected {str(expected[0])[:60]}")

        return run

    return [case(args, expected) for args, expected in tests["calls"]]


def _remote(program: Program, name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return program.call(name, args, kwargs)

    return call


def _same(value: Any, expected: Any) -> bool:
    """Equal, where lists and tuples are one thing and floats may differ in the last digits."""
    if isinstance(value, list | tuple) and isinstance(expected, list | tuple):
        return len(value) == len(expected) and all(map(_same, value, expected))
    if isinstance(value, dict) and isinstance(expected, dict):
        return value.keys() == expected.keys() and all(_same(each, expected[key]) for key, each in value.items())
    if _is_number(value) and _is_number(expected) and float in (type(value), type(expected)):
        return bool(value == expected) or math.isclose(value, expected, rel_tol=_CLOSE, abs_tol=_CLOSE)
    return type(value) is type(expected) and bool(value == expected)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


if __name__ == "__main__":
    main()
