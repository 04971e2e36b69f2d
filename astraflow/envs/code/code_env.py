"""Problems that are solved by a program, which tests judge in sandboxes.

One question, one reply; the last fenced block of Python in it is the program. A program that no sandbox could be made
for is an episode with reason `grader`, not a wrong answer. Tasks carry their tests, so only dataflow reads the files; a
rollout machine needs bubblewrap and no copy.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from astraflow.envs.arguments import choice
from astraflow.envs.base import ChatMessage, Reply
from astraflow.envs.code.grader import Grader
from astraflow.envs.code.problems import CodeProblem, Tests
from astraflow.envs.code.replies import completed, program_in
from astraflow.envs.code.sets import read_problems, source_of
from astraflow.envs.sandbox import Limits, Sandbox
from astraflow.envs.single_turn import Grade, SingleTurnEnv
from astraflow.envs.templates import Template, without_placeholders
from astraflow.errors import ConfigError, EnvError

_TEMPLATE = "Solve this problem in Python 3. End with the whole program in one ```python block.\n\n{question}"
_WAIT_S = 500.0  # for a slot, beyond the time of a program


class CodeEnv(SingleTurnEnv):
    """One problem per task; reward 1 for a program that passes all tests, or the share of tests that it passes.

    Task i is the i-th problem in file order.

    Args:
        dataset: a published set by its name, e.g. "humaneval"; "" = none.
        path: files of your own, as in environment `math`: JSON lines, JSON, CSV, parquet, hf://datasets/….
        question_key, tests_key: key or column of the question and of its tests; `a|b` is a, or b where there is no a.
            The shapes of tests that are known are in docs/code.md.
        bad_rows: "refuse" | "skip": what is done with rows without question or tests.
        reward: "all" | "share".
        system: system prompt; "" = none.
        template: the user's message; `{question}` is filled in.
        most_tests: of a problem, the first so many count; 0 = all.
        case_s: seconds for one test.
        program_s: seconds for all tests of a program.
        memory_mb: of a program with all its processes.
        slots: programs at a time on a machine; 0 = as many as it has cores.
        python: the interpreter that runs programs; "" = the machine's.
        unsafe: no sandbox, limits only.
        policy: the policy that answers; "" = the only one of the run.

    Raises:
        ConfigError: a name is unknown or a number out of range; at first use, whatever is wrong in the files, and if
            this machine allows no sandbox.
    """

    def __init__(
        self,
        *,
        dataset: str = "",
        path: str | Sequence[str] = "",
        question_key: str | None = None,
        tests_key: str | None = None,
        bad_rows: str = "refuse",
        reward: str = "all",
        system: str = "",
        template: str = _TEMPLATE,
        most_tests: int = 0,
        case_s: float = 6.0,
        program_s: float = 100.0,
        memory_mb: int = 512,
        slots: int = 0,
        python: str = "",
        unsafe: bool = False,
        policy: str = "",
    ) -> None:
        super().__init__(policy=policy)
        if case_s <= 0 or program_s < case_s or most_tests < 0 or slots < 0:
            raise ConfigError(
                f"case_s = {case_s}, program_s = {program_s}, most_tests = {most_tests} and slots = {slots}: expected "
                "more than 0, at least case_s, and 0 or more"
            )
        self._source = source_of(dataset=dataset, path=path, question_key=question_key, tests_key=tests_key)
        self._skip_bad = choice("bad_rows", bad_rows, ("refuse", "skip")) == "skip"
        self._by_share = choice("reward", reward, ("all", "share")) == "share"
        self._system = without_placeholders(system, ("question",), key="system")
        self._template = Template(template, ("question",))
        self._most_tests = most_tests
        self._limits = Limits(memory_mb=memory_mb)
        self._times = (case_s, program_s)
        self._where = (slots, python, unsafe)
        self.grade_deadline_s = program_s + _WAIT_S

    @property
    def size(self) -> int | None:  # type: ignore[override]
        """Number of problems."""
        return len(self._problems)

    def task(self, index: int) -> dict[str, Any]:
        """{"index", "question", "tests"}. Raises EnvError beyond `size`."""
        if not 0 <= index < len(self._problems):
            raise EnvError(f"task index is {index}, there are {len(self._problems)} problems")
        found = self._problems[index]
        return {"index": index, "question": found.question, "tests": msgspec.json.encode(self._first(found)).decode()}

    def prompt(self, payload: Mapping[str, Any]) -> Sequence[ChatMessage]:
        """The system prompt, if any, and the filled-in template."""
        system = [ChatMessage("system", self._system)] if self._system else []
        return [*system, ChatMessage("user", self._template.fill({"question": payload["question"]}))]

    def grade(self, payload: Mapping[str, Any], reply: Reply) -> Grade:
        """Run the program. Raises EnvError if it can't be judged."""
        tests = msgspec.json.decode(payload["tests"], type=Tests)
        program = program_in(reply.text)
        if not program.strip():
            return self._graded(0, tests.count)
        if tests.start:
            program = completed(tests.start, program, tests.name)
        verdict = self._grader.grade(program, tests)
        return self._graded(verdict.passed, verdict.total)

    def _graded(self, passed: int, total: int) -> Grade:
        share, solved = passed / total, float(passed == total)
        reward = share if self._by_share else solved
        return Grade(reward=reward, correct=solved, parts={"solved": solved, "tests": share})

    def _first(self, problem: CodeProblem) -> Tests:
        most, tests = self._most_tests or None, problem.tests
        return msgspec.structs.replace(
            tests, printed=tests.printed[:most], calls=tests.calls[:most], scripts=tests.scripts[:most]
        )

    @cached_property
    def _problems(self) -> tuple[CodeProblem, ...]:
        return read_problems(self._source, skip_bad=self._skip_bad)

    @cached_property
    def _grader(self) -> Grader:
        slots, python, unsafe = self._where
        sandbox = Sandbox(limits=self._limits, slots=slots, python=python, unsafe=unsafe)
        case_s, program_s = self._times
        return Grader(sandbox, case_s=case_s, program_s=program_s, stop_early=not self._by_share)
