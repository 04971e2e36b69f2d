"""The tiny models' tasks: reverse five digits, or add two. Right means exactly right, and ended by the policy itself.

It needs no extra. Held-out reversals are in neither the model's warm start nor training, see models/tiny_tasks.py.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from astraflow.envs.arguments import choice
from astraflow.envs.base import ChatMessage, Reply
from astraflow.envs.single_turn import Grade, SingleTurnEnv
from astraflow.errors import EnvError
from astraflow.holdout import HELD_OUT_FIRST
from astraflow.models.tiny_tasks import TINY_TASKS, TinyTask, tiny_question


class TinyEnv(SingleTurnEnv):
    """Reward 1 for the exact answer followed by the end token, else 0.

    Args:
        task: "reverse" | "add".
        seed: of the questions.
        holdout_first: index of the first held-out task.
        policy: the policy that answers; "" = the only one of the run.

    Raises:
        ConfigError: an unknown task.
    """

    def __init__(self, *, task: str, seed: int = 0, holdout_first: int = HELD_OUT_FIRST, policy: str = "") -> None:
        super().__init__(policy=policy)
        self._task: TinyTask = "add" if choice("task", task, TINY_TASKS) == "add" else "reverse"
        self._seed = seed
        self._holdout_first = holdout_first

    def task(self, index: int) -> dict[str, Any]:
        """{"index", "question", "answer"}, e.g. {"index": 3, "question": "34071=", "answer": "17043"}."""
        if index < 0:
            raise EnvError(f"task index is {index}, expected at least 0")
        held_out = index >= self._holdout_first
        question, answer = tiny_question(self._task, index, seed=self._seed, held_out=held_out)
        return {"index": index, "question": question, "answer": answer}

    def prompt(self, payload: Mapping[str, Any]) -> Sequence[ChatMessage]:
        """The raw question; the tiny models' chat template adds <bos>."""
        return [ChatMessage("user", payload["question"])]

    def expected(self, payload: Mapping[str, Any]) -> str:
        return str(payload["answer"])

    def grade(self, payload: Mapping[str, Any], reply: Reply) -> Grade:
        """Exact match of the whole reply, and the end token."""
        right = float(reply.ended and reply.text == payload["answer"])
        return Grade(reward=right, correct=right)
