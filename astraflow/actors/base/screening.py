"""What is wrong with a task or a request that decodes and yet can't be worked on. Pure; callers make it a dead letter.

Only what would hurt the actor or its neighbours is checked here; engines refuse what they can't sample, dataflow counts
records that it didn't ask for.
"""

import math
import re
from collections.abc import Container

from astraflow.errors import MessageError
from astraflow.messages import GenRequest, Task
from astraflow.messages.ids import parse_task_id

MAX_DELIVERIES = 20  # what was handed out this often without an end is poison: it kills whoever takes it
_ID = re.compile(r"[!-~]{1,512}")  # goes into a header
_SUBJECT = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def fault_of_task(task: Task, *, incarnation: str, envs: Container[str]) -> str:
    """Why a task isn't played; "" if it may be. `incarnation`: the run's own."""
    if not _ID.fullmatch(task.id):
        return f"task id {task.id[:80]!r} isn't printable ASCII of at most 512 characters"
    parsed = parse_task_id(task.id)
    if parsed is not None and parsed[0] != incarnation:
        return f"task {task.id} is of another run: incarnation {parsed[0]}, expected {incarnation}"
    if task.env not in envs:
        return f"task {task.id} is for environment {task.env[:80]!r}, which isn't served here"
    if not (math.isfinite(task.deadline_s) and task.deadline_s > 0):
        return f"task {task.id} has deadline_s {task.deadline_s}, expected a positive number"
    return ""


def fault_of_request(request: GenRequest, *, policy: str, replies: str) -> str:
    """Why a request isn't served; "" if it may be. `replies`: what every reply subject begins with."""
    if request.policy != policy:
        return f"request {request.id[:80]!r} is for policy {request.policy[:80]!r}, this is {policy}"
    subject = request.reply_subject
    if not (subject.startswith(replies) and len(subject) <= 256 and _SUBJECT.fullmatch(subject)):
        return f"request {request.id[:80]!r} wants its answer on {subject[:80]!r}, expected a subject below {replies}"
    try:
        tokens = request.prompt_tokens.numpy()
    except MessageError as exc:
        return f"request {request.id[:80]!r} has a malformed prompt: {exc}"
    if request.prompt_tokens.dtype != "i4" or tokens.ndim != 1:
        return (
            f"request {request.id[:80]!r} has a prompt of {request.prompt_tokens.dtype}{tokens.shape}, expected i4[P]"
        )
    return ""
