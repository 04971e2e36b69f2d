"""The child process of `verifier_pool`: judges one answer per line of stdin with math-verify, until stdin ends.

It imposes no deadline, its parent kills it. Limits that hold even if the parent dies: RLIMIT_AS on its memory, and
RLIMIT_CPU, moved ahead before each job, on the time of one job.

    stdin   {"gold": "1/2", "text": "… \\boxed{0.5}"}
    stdout  {"ready": true} once, then {"right": true} per job
"""

import json
import logging
import math
import resource
import sys
from typing import Any

from astraflow.envs.notation import (
    choice,
    chosen_letter,
    expression,
    is_words,
    labelled,
    last_answer,
    plain,
    said_answer,
    same_text,
)

_verdicts = sys.stdout


def main(memory_bytes: int, job_cpu_s: float) -> None:
    """Serve until stdin ends."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.stdout = sys.stderr  # whatever a library prints is no verdict
    logging.disable(logging.CRITICAL)  # math-verify logs what it can't parse, which is the normal case here
    judge = _judge()
    _answer({"ready": True})
    for line in sys.stdin:
        used = resource.getrusage(resource.RUSAGE_SELF)
        limit = math.ceil(used.ru_utime + used.ru_stime + job_cpu_s) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
        job = json.loads(line)
        _answer({"right": judge(job["gold"], job["text"])})


def _answer(message: dict[str, bool]) -> None:
    _verdicts.write(json.dumps(message) + "\n")
    _verdicts.flush()


def _judge() -> Any:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    configs = [LatexExtractionConfig(), ExprExtractionConfig()]

    def parsed(text: str) -> list[Any]:
        found: list[Any] = parse(text, extraction_config=configs, parsing_timeout=None)
        return found

    def judge(gold: str, text: str) -> bool:
        """Mathematics decides last, gold first because `verify` isn't symmetric. Nothing is equal to nothing."""
        answer = last_answer(text)
        if not gold or not answer:
            return False
        if same_text(answer, gold):
            return True
        if letter := choice(gold):
            return chosen_letter(text) == letter
        letter, behind = labelled(gold)
        if letter and not gold.startswith(f"{letter}."):  # D. H. Lawrence
            return chosen_letter(text) == letter or judge(behind, text)
        if is_words(gold):
            return same_text(said_answer(answer), gold)
        gold = expression(gold)
        expected = parsed(f"${gold}$") or parsed(gold)
        return bool(expected) and bool(verify(expected, parsed(expression(text)), timeout_seconds=None))

    return lambda gold, text: judge(plain(gold).strip(), plain(text))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
