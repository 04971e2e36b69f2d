"""The two questions that the tiny character-level models answer: reverse five digits, add two digits. Pure.

One place for the model's warm start and for the environment, because both must agree on what is held out: a held-out
reversal is in neither the warm start nor training. The 100 sums are a table that a model of this size can only learn by
heart, so none is held out there: evaluation on `add` shows learning, not generalisation.
"""

import hashlib
from typing import Literal

from astraflow.holdout import is_held_out

TinyTask = Literal["reverse", "add"]
TINY_TASKS: tuple[TinyTask, ...] = ("reverse", "add")
CHARACTERS = "0123456789+="
_REVERSE_DIGITS = 5
_HELD_OUT_FRACTIONS: dict[TinyTask, float] = {"reverse": 0.2, "add": 0.0}


def tiny_question(task: TinyTask, index: int, *, seed: int, held_out: bool) -> tuple[str, str]:
    """(prompt, answer) of task `index`, e.g. ("34071=", "17043") or ("7+5=", "12"); equal for equal arguments.

    Uniform over the questions of its share: of 100,000 reversals a fifth is held out, of 100 sums none (then
    `held_out` only changes the order).
    """
    fraction = _HELD_OUT_FRACTIONS[task]
    draw = 0
    while True:
        digest = hashlib.sha256(f"{task} {seed} {index} {held_out} {draw}".encode()).digest()
        question, answer = _question(task, int.from_bytes(digest[:8], "big"))
        if fraction == 0 or is_held_out(question, fraction) is held_out:
            return question, answer
        draw += 1


def _question(task: TinyTask, number: int) -> tuple[str, str]:
    if task == "reverse":
        digits = f"{number % 10**_REVERSE_DIGITS:0{_REVERSE_DIGITS}d}"
        return f"{digits}=", digits[::-1]
    left, right = number % 10, number // 10 % 10
    return f"{left}+{right}=", str(left + right)
