"""Mathematical questions from a file, judged by math-verify in killable processes.

The whole reply counts: math-verify takes the last \\boxed{…}, else the last expression or number. A reply that the
verifier can't judge in time is an episode with reason `grader`, not a wrong answer. Tasks carry question and answer, so
only dataflow reads the file; a rollout machine needs no copy.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from astraflow.algos.holdout import HELD_OUT_FIRST, is_held_out
from astraflow.envs.base import ChatMessage, Grade, Reply, SingleTurnEnv
from astraflow.envs.questions import Question, read_questions
from astraflow.envs.verifier_pool import VerifierPool
from astraflow.errors import ConfigError, EnvError


class MathEnv(SingleTurnEnv):
    """One question of the file per task; reward = right + end_bonus · (the policy stopped by itself).

    Task i is the i-th training question in file order; task holdout_first + i is the i-th held-out one. `size` counts
    the training questions.

    Args:
        path: JSON lines, or .parquet; relative to the working directory. Read at the first use of `size` or `task`.
        question_key: key or column of the question.
        answer_key: key or column of the expected answer, LaTeX without dollars, a number or text; of GSM8K's answers
            the part behind `####` counts.
        system: system prompt; "" = none.
        template: the user's message; `{question}` is filled in.
        end_bonus: extra reward for ending within the token budget.
        holdout: share of the questions, chosen by a hash of their text, that is kept out of training.
        holdout_first: index of the first held-out task.
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
        holdout: float = 0.0,
        holdout_first: int = HELD_OUT_FIRST,
        verifiers: int = 2,
        deadline_s: float = 3.0,
        policy: str = "",
    ) -> None:
        super().__init__(policy=policy)
        if not 0 <= holdout < 1 or verifiers < 1 or deadline_s <= 0:
            raise ConfigError(
                f"got holdout={holdout}, verifiers={verifiers}, deadline_s={deadline_s}; expected holdout in [0, 1), "
                "verifiers >= 1 and deadline_s > 0"
            )
        self._path = Path(path).expanduser()
        self._keys = {"question_key": question_key, "answer_key": answer_key}
        self._system = system
        self._template = template
        self._end_bonus = end_bonus
        self._holdout = holdout
        self._holdout_first = holdout_first
        self._pool = VerifierPool(workers=verifiers, deadline_s=deadline_s)

    @property
    def size(self) -> int | None:  # type: ignore[override]
        """Number of training questions."""
        return len(self._questions[False])

    def task(self, index: int) -> dict[str, Any]:
        """{"index", "question", "answer"}. Raises EnvError beyond the questions of the index's share."""
        held_out = self._holdout > 0 and index >= self._holdout_first
        questions = self._questions[held_out]
        place = index - self._holdout_first if held_out else index
        if not 0 <= place < len(questions):
            share = "held-out" if held_out else "training"
            raise EnvError(f"task index is {index}, {self._path} has {len(questions)} {share} questions")
        found = questions[place]
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
    def _questions(self) -> dict[bool, tuple[Question, ...]]:
        """By whether they are held out. Repeated questions share their fate."""
        found = read_questions(self._path, **self._keys)
        return {
            held_out: tuple(entry for entry in found if is_held_out(entry.question, self._holdout) is held_out)
            for held_out in (False, True)
        }
