"""Episodes as people read them: in a terminal. Without colours; nothing that was said can move the cursor."""

import textwrap
from collections.abc import Iterable, Iterator

from astraflow.messages import Spoken
from astraflow.messages.printable import printable, printable_lines
from astraflow.view.jsonl_lines import EpisodeLine, ReplyLine
from astraflow.view.transcripts import Numbered
from astraflow.view.wording import duration


def transcript_text(episodes: Iterable[Numbered], *, width: int = 100) -> Iterator[str]:
    """Lines without their line breaks."""
    for at, episode in enumerate(episodes):
        if at:
            yield ""
        yield from _episode(episode.number, episode.line, width)


def title(number: int, line: EpisodeLine) -> str:
    """`#12 · task inc/train/0/3/1 · attempt 1 · env sums · evaluation held-out · ok · correct 1 · 0.4 s`."""
    facts = [f"#{number}", f"task {line.task_id}", f"env {line.env}"]
    if line.attempt:
        facts.append(f"attempt {line.attempt + 1}")
    if line.eval_set:
        facts.append(f"evaluation {line.eval_set}")
    facts.append(line.reason)
    if line.correct is not None:
        facts.append(f"correct {line.correct:.4g}")
    if line.ended_at > line.started_at > 0:
        facts.append(duration(line.ended_at - line.started_at))
    return printable(" · ".join(facts))


def speaker(reply: ReplyLine) -> str:
    """`solver as planner · reward 0.5 (format 0.1, answer 0.4) · 128 tokens · version 3 to 4 · stop`."""
    facts = [f"{reply.policy} as {reply.role}" if reply.role else reply.policy]
    parts = ", ".join(f"{name} {_number(value)}" for name, value in reply.reward_parts.items())
    facts.append(f"reward {_number(reply.reward)}{f' ({parts})' if parts else ''}")
    facts.append(f"{reply.tokens} tokens")
    if reply.versions:
        oldest, newest = reply.versions[0], reply.versions[-1]
        facts.append(f"version {oldest}" if oldest == newest else f"versions {oldest} to {newest}")
    if reply.finish_reason:
        facts.append("cut off" if reply.finish_reason == "length" else reply.finish_reason)
    return printable(" · ".join(facts))


def conversation(line: EpisodeLine, reply: ReplyLine) -> tuple[Spoken, ...]:
    """What was said; of a run that kept no messages the task and the replies."""
    if reply.messages or not (reply.text or line.prompt):
        return reply.messages
    return (Spoken(role="task", content=line.prompt), Spoken(role="replies", content=reply.text))


def _episode(number: int, line: EpisodeLine, width: int) -> Iterator[str]:
    yield f"━━ {title(number, line)}"
    if line.error:
        yield from _said("error", line.error, width)
    if line.answer:
        yield from _said("expected", line.answer, width)
    if not line.replies and line.prompt:
        yield from _said("task", line.prompt, width)
    for reply in line.replies:
        yield f"── {speaker(reply)}"
        for message in conversation(line, reply):
            yield from _said(message.role, message.content, width)


def _said(role: str, content: str, width: int) -> Iterator[str]:
    role = printable(role)
    lines = printable_lines(content).split("\n")
    for at, text in enumerate(lines):
        for part, piece in enumerate(textwrap.wrap(text, max(20, width - 12), drop_whitespace=False) or [""]):
            yield f"{role if not at and not part else '':>9} │ {piece}".rstrip()


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.4g}"
