"""Questions from files or published sets, judged by math-verify in killable processes.

The whole reply counts: its last \\boxed{…}, else the last expression or number; letters of a multiple choice and words
are compared as such. A reply that the
verifier can't judge in time is an episode with reason `grader`, not a wrong answer. Tasks carry question and answer, so
only dataflow reads the file; a rollout machine needs no copy.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from astraflow.envs.arguments import choice
from astraflow.envs.base import ChatMessage, Reply
from astraflow.envs.presets import source
from astraflow.envs.question_files import find_sources
from astraflow.envs.questions import Question, Reading, pattern, read_questions
from astraflow.envs.single_turn import Grade, SingleTurnEnv
from astraflow.envs.templates import Template, without_placeholders
from astraflow.envs.verifier_pool import VerifierPool
from astraflow.errors import ConfigError, EnvError


class MathEnv(SingleTurnEnv):
    """One question per task; reward = right + end_bonus · (the policy stopped by itself).

    Task i is the i-th question in file order, without repetitions, so ranges of indices that don't overlap hold out
    questions honestly: e.g. `[sources.x] size = 900` with `[eval.x] first = 900`.

    Args:
        dataset: a published set by its name, e.g. "deepscaler"; it says what path, keys and patterns are unless they
            are given. "" = none.
        path: JSON lines, a JSON array, CSV or parquet, also .gz and .zst; a pattern, a folder, or several of these in a
            list. hf://datasets/org/name[@revision]/ and a file, a pattern or a split is downloaded from the Hugging
            Face hub. Relative to the working directory; read at the first use of `size` or `task`.
        question_key: key or column of the question: text, or a list of messages. `a.b` is b in a; `a|b` is a, or b
            where there is no a.
        answer_key: likewise of the expected answer: LaTeX, text, a number, true or false, or a list of which any is
            right. Of GSM8K's answers the part behind `####` counts, of a solution what is in its last \\boxed{…}.
        question_strip: a regular expression; what matches is taken out of the question.
        answer_strip: likewise of the answer, before anything else is done with it.
        bad_rows: "refuse" | "skip": what is done with rows without question or usable answer.
        system: system prompt; "" = the question's own, if it has one.
        template: the user's message; `{question}` is filled in. Other braces stay; `{{word}}` gives `{word}`.
        end_bonus: extra reward for ending within the token budget.
        verifiers: processes that judge, at most.
        deadline_s: seconds for one judgement.
        policy: the policy that answers; "" = the only one of the run.

    Raises:
        ConfigError: math-verify is missing, a preset, pattern or placeholder is unknown, or a number is out of range;
            at first use, whatever is wrong in the files.
    """

    def __init__(
        self,
        *,
        dataset: str = "",
        path: str | Sequence[str] = "",
        question_key: str | None = None,
        answer_key: str | None = None,
        question_strip: str | None = None,
        answer_strip: str | None = None,
        bad_rows: str = "refuse",
        system: str = "",
        template: str = "{question}\nPut the final answer into \\boxed{}.",
        end_bonus: float = 0.0,
        verifiers: int = 2,
        deadline_s: float = 3.0,
        policy: str = "",
    ) -> None:
        super().__init__(policy=policy)
        if verifiers < 1 or deadline_s <= 0:
            raise ConfigError(f"verifiers={verifiers} and deadline_s={deadline_s}, expected at least 1 and more than 0")
        self._source = source(
            dataset=dataset,
            path=path,
            question_key=question_key,
            answer_key=answer_key,
            question_strip=question_strip,
            answer_strip=answer_strip,
        )
        self._reading = Reading(
            question_key=self._source.question_key,
            answer_key=self._source.answer_key,
            question_strip=pattern("question_strip", self._source.question_strip),
            answer_strip=pattern("answer_strip", self._source.answer_strip),
            skip_bad=choice("bad_rows", bad_rows, ("refuse", "skip")) == "skip",
        )
        self._system = without_placeholders(system, ("question",), key="system")
        self._template = Template(template, ("question",))
        self._end_bonus = end_bonus
        self._pool = VerifierPool(workers=verifiers, deadline_s=deadline_s)

    @property
    def size(self) -> int | None:  # type: ignore[override]
        """Number of different questions in the file."""
        return len(self._questions)

    def task(self, index: int) -> dict[str, Any]:
        """{"index", "question", "answer"}, and where there are any "aliases" of the answer and messages "before".

        Raises: EnvError beyond `size`.
        """
        if not 0 <= index < len(self._questions):
            where = ", ".join(self._source.paths)
            raise EnvError(f"task index is {index}, {where} has {len(self._questions)} different questions")
        found = self._questions[index]
        payload: dict[str, Any] = {"index": index, "question": found.question, "answer": found.answers[0]}
        if found.answers[1:]:
            payload["aliases"] = list(found.answers[1:])
        if found.before:
            payload["before"] = [list(message) for message in found.before]
        return payload

    def prompt(self, payload: Mapping[str, Any]) -> Sequence[ChatMessage]:
        """The system prompt, if any, messages of the question's own, and the filled-in template."""
        before = [ChatMessage(role, text) for role, text in payload.get("before", ())]
        if self._system:
            before = [ChatMessage("system", self._system), *(each for each in before if each.role != "system")]
        return [*before, ChatMessage("user", self._template.fill({"question": payload["question"]}))]

    def expected(self, payload: Mapping[str, Any]) -> str:
        """The answer as it is in the file, behind `####`."""
        return " or ".join(_golds(payload))

    def grade(self, payload: Mapping[str, Any], reply: Reply) -> Grade:
        """Right or wrong. Raises EnvError if the verifier can't tell."""
        right = float(any(self._pool.verify(gold, reply.text) for gold in _golds(payload)))
        bonus = self._end_bonus * reply.ended
        return Grade(reward=right + bonus, correct=right, parts={"answer": right, "end": bonus})

    async def close(self) -> None:
        """End the verifier processes."""
        await asyncio.to_thread(self._pool.close)

    @cached_property
    def _questions(self) -> tuple[Question, ...]:
        """In file order; of several with the same question, the first."""
        first: dict[tuple[object, ...], Question] = {}
        for entry in read_questions(find_sources(self._source), self._reading):
            first.setdefault((entry.before, entry.question), entry)
        return tuple(first.values())


def _golds(payload: Mapping[str, Any]) -> list[str]:
    return [str(payload["answer"]), *payload.get("aliases", ())]
