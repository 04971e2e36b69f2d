"""Mathematical questions from a file, judged by math-verify in killable processes.

The whole reply counts: math-verify takes the last \\boxed{…}, else the last expression or number. A reply that the
verifier can't judge in time is an episode with reason `grader`, not a wrong answer. Tasks carry question and answer, so
only dataflow reads the file; a rollout machine needs no copy.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from astraflow.envs.base import ChatMessage, Reply
from astraflow.envs.questions import Question, read_questions
from astraflow.envs.single_turn import Grade, SingleTurnEnv
from astraflow.envs.verifier_pool import VerifierPool
from astraflow.errors import ConfigError, EnvError
from astraflow.models.hub import DATASETS, hub_file
from astraflow.paths import user_path


class MathEnv(SingleTurnEnv):
    """One question of the file per task; reward = right + end_bonus · (the policy stopped by itself).

    Task i is the i-th question in file order, without repetitions, so ranges of indices that don't overlap hold out
    questions honestly: e.g. `[sources.x] size = 900` with `[eval.x] first = 900`.

    Args:
        path: JSON lines, or .parquet; relative to the working directory, or hf://datasets/org/name/file, which is
            downloaded from the Hugging Face hub. Read at the first use of `size` or `task`.
        question_key: key or column of the question.
        answer_key: key or column of the expected answer, LaTeX without dollars, a number or text; of GSM8K's answers
            the part behind `####` counts.
        system: system prompt; "" = none.
        template: the user's message; `{question}` is filled in.
        end_bonus: extra reward for ending within the token budget.
        verifiers: processes that judge, at most.
        deadline_s: seconds for one judgement.
        policy: the policy that answers; "" = the only one of the run.

    Raises:
        ConfigError: math-verify is missing, or a number is out of range; at first use, whatever is wrong in the file.
    """

    def __init__(
        self,
        *,
        path: str,
        question_key: str = "question",
        answer_key: str = "answer",
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
        self._path = path
        self._keys = {"question_key": question_key, "answer_key": answer_key}
        self._system = system
        self._template = template
        self._end_bonus = end_bonus
        self._pool = VerifierPool(workers=verifiers, deadline_s=deadline_s)

    @property
    def size(self) -> int | None:  # type: ignore[override]
        """Number of different questions in the file."""
        return len(self._questions)

    def task(self, index: int) -> dict[str, Any]:
        """{"index", "question", "answer"}. Raises EnvError beyond `size`."""
        if not 0 <= index < len(self._questions):
            raise EnvError(f"task index is {index}, {self._path} has {len(self._questions)} different questions")
        found = self._questions[index]
        return {"index": index, "question": found.question, "answer": found.answer}

    def prompt(self, payload: Mapping[str, Any]) -> Sequence[ChatMessage]:
        """The system prompt, if any, and the filled-in template."""
        system = [ChatMessage("system", self._system)] if self._system else []
        return [*system, ChatMessage("user", self._template.replace("{question}", payload["question"]))]

    def expected(self, payload: Mapping[str, Any]) -> str:
        """The answer as it is in the file, behind `####`."""
        return str(payload["answer"])

    def grade(self, payload: Mapping[str, Any], reply: Reply) -> Grade:
        """Right or wrong. Raises EnvError if the verifier can't tell."""
        right = float(self._pool.verify(payload["answer"], reply.text))
        bonus = self._end_bonus * reply.ended
        return Grade(reward=right + bonus, correct=right, parts={"answer": right, "end": bonus})

    async def close(self) -> None:
        """End the verifier processes."""
        await asyncio.to_thread(self._pool.close)

    @cached_property
    def _questions(self) -> tuple[Question, ...]:
        """In file order; of several with the same question, the first."""
        first: dict[str, Question] = {}
        file = hub_file(self._path) if self._path.startswith(DATASETS) else user_path(self._path)
        for entry in read_questions(file, **self._keys):
            first.setdefault(entry.question, entry)
        return tuple(first.values())
