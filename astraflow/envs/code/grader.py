"""Runs a program against its tests, in sandboxes. It blocks; it knows no replies and no rewards.

A program that reads and prints runs once per test, and its output is compared here. A program whose functions are
called runs in one sandbox, the tests in another, with a line between them over which only plain values travel: in one
process a program could replace what judges it (an object whose `__eq__` is always true passes 157 of HumanEval's 164).
Invariant: what the program does is a verdict, whatever it is; what keeps a sandbox from being made is an EnvError.
"""

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from astraflow import clock
from astraflow.envs.code.printed import same_output
from astraflow.envs.code.problems import Tests
from astraflow.envs.sandbox import Limits, Result, Sandbox, Status
from astraflow.envs.sandbox.sandbox import Started, memory_file
from astraflow.errors import EnvError, GraderError


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How a program did.

    Attributes:
        total: tests that there are, also if the first failure ended it.
        first: what was wrong in the first test that failed, for people; "" = none has.
    """

    passed: int
    total: int
    first: str = ""

    @property
    def share(self) -> float:
        return self.passed / self.total


class Grader:
    """Judges programs.

    Args:
        case_s: for one test.
        program_s: for all tests of a program together.
        stop_early: end at the first failure.
    """

    def __init__(
        self, sandbox: Sandbox, *, case_s: float = 6.0, program_s: float = 100.0, stop_early: bool = True
    ) -> None:
        self._sandbox = sandbox
        self._case_s = case_s
        self._program_s = program_s
        self._stop_early = stop_early

    def grade(self, program: str, tests: Tests) -> Verdict:
        """The verdict. Raises EnvError if it couldn't be judged."""
        with self._sandbox.slot():
            return self._printed(program, tests) if tests.printed else self._called(program, tests)

    def _printed(self, program: str, tests: Tests) -> Verdict:
        until = clock.monotonic() + self._program_s
        passed, first = 0, ""
        for number, (given, expected) in enumerate(tests.printed, start=1):
            left = min(self._case_s, until - clock.monotonic())
            if left <= 0:
                first = first or f"test {number}: not begun within the {self._program_s:g} s of all tests"
                break
            limits = replace(self._sandbox.limits, wall_s=left, cpu_s=0.0)
            result = self._sandbox.run_now(program, stdin=given.encode(errors="replace"), limits=limits)
            right = result.well and same_output(result.text, expected)
            passed += right
            first = first or ("" if right else f"test {number}: {_said(result, expected)}")
            if not right and self._stop_early:
                break
        return Verdict(passed=passed, total=tests.count, first=first)

    def _called(self, program: str, tests: Tests) -> Verdict:
        limits = replace(self._sandbox.limits, wall_s=self._program_s, cpu_s=0.0)
        told = {
            "scripts": tests.scripts,
            "calls": tests.calls,
            "setup": tests.setup,
            "names": [tests.name] if tests.name else [],
            "case_s": self._case_s,
            "stop_early": self._stop_early,
        }
        files = {"tests.json": json.dumps(told).encode(), "inside_solver.py": _text_of("inside_solver")}
        with self._solver(program, limits) as (solver, line):
            checker = _text_of("inside_checker").decode()
            result = self._sandbox.run_now(checker, files=files, stdin=line, limits=limits, beside=solver)
        if result.status is not Status.OK:
            return Verdict(passed=0, total=tests.count, first=f"the tests ended with {result.status}")
        try:
            said = json.loads(result.stdout)
            return Verdict(passed=said["passed"], total=tests.count, first=str(said["first"]))
        except (ValueError, KeyError, TypeError) as exc:
            raise GraderError(f"the tests themselves can't be run: {_last_line(result) or exc}") from exc

    @contextlib.contextmanager
    def _solver(self, program: str, limits: Limits) -> Iterator[tuple[Started, int]]:
        """The program in its sandbox, and the line to it."""
        ours, theirs = socket.socketpair()
        files = {"main.py": _text_of("inside_solver"), "solution.py": program.encode(errors="surrogatepass")}
        argv = [self._sandbox.tools.python, "-s", "-B", "main.py"]
        with ours, theirs, memory_file("out") as out:
            streams = (theirs.fileno(), out, out)
            with self._sandbox.started(argv, files, limits, streams) as started:
                theirs.close()
                yield started, ours.fileno()
                if started.end() is None and started.child.returncode not in (0, -9):
                    raise EnvError(f"no sandbox could be made: {os.pread(out, 300, 0).decode(errors='replace')}")


@lru_cache
def _text_of(module: str) -> bytes:
    return Path(__file__).with_name(f"{module}.py").read_bytes()


def _said(result: Result, expected: str) -> str:
    if result.status is not Status.OK:
        return f"ended with {result.status}"
    if result.exit:
        return f"exit code {result.exit}: {_last_line(result)}"
    return f"printed {result.text[:60]!r}, expected {expected[:60]!r}"


def _last_line(result: Result) -> str:
    return "".join(result.stderr.decode(errors="replace").strip().splitlines()[-1:])[:120]
