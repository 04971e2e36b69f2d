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
from astraflow.verdict import OK, Verdict, refused

MAX_DELIVERIES = 20  # what was handed out this often without an end is poison: it kills whoever takes it
_ID = re.compile(r"[!-~]{1,512}")  # goes into a header
_SUBJECT = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def verdict_on_task(task: Task, *, incarnation: str, envs: Container[str]) -> Verdict:
    """Whether a task may be played. `incarnation`: the run's own."""
    if not _ID.fullmatch(task.id):
        return refused("id", f"task id {task.id[:80]!r} isn't printable ASCII of at most 512 characters")
    parsed = parse_task_id(task.id)
    if parsed is not None and parsed[0] != incarnation:
        text = f"task {task.id} is of another run: incarnation {parsed[0]}, expected {incarnation}"
        return refused("run", text)
    if task.env not in envs:
        return refused("env", f"task {task.id} is for environment {task.env[:80]!r}, which isn't served here")
    if not (math.isfinite(task.deadline_s) and task.deadline_s > 0):
        text = f"task {task.id} has deadline_s {task.deadline_s}, expected a positive number"
        return refused("deadline", text)
    return OK


def verdict_on_request(request: GenRequest, *, policy: str, replies: str) -> Verdict:
    """Whether a request may be served. `replies`: what every reply subject begins with."""
    name = f"request {request.id[:80]!r}"
    if request.policy != policy:
        return refused("policy", f"{name} is for policy {request.policy[:80]!r}, this is {policy}")
    subject = request.reply_subject
    if not (subject.startswith(replies) and len(subject) <= 256 and _SUBJECT.fullmatch(subject)):
        text = f"{name} wants its answer on {subject[:80]!r}, expected a subject below {replies}"
        return refused("reply-subject", text)
    try:
        tokens = request.prompt_tokens.numpy()
    except MessageError as exc:
        return refused("prompt", f"{name} has a malformed prompt: {exc}")
    if request.prompt_tokens.dtype != "i4" or tokens.ndim != 1:
        text = f"{name} has a prompt of {request.prompt_tokens.dtype}{tokens.shape}, expected i4[P]"
        return refused("prompt", text)
    return OK
