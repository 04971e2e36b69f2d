"""What a reply does: it searches, opens a page, or answers. And the text that the policy gets back. Pure.

The first action that is closed counts; what stands behind it is not looked at.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from astraflow.envs.search.corpus import Passage


class Act(StrEnum):
    """What a reply does."""

    SEARCH = "search"
    ACCESS = "access"
    ANSWER = "answer"
    NOTHING = "nothing"


_ACTION = re.compile(r"<(search|access|answer)>(.*?)</\1>", re.DOTALL)
_ACTION_TAGS = re.compile(r"</?(?:search|access|answer)>")
_FOREIGN = ("<information>", "</information>", "<|im_start|>", "<|im_end|>")


@dataclass(frozen=True)
class Turn:
    """A reply, read.

    Attributes:
        what: a query, an address or an answer.
        well_formed: one action and nothing behind it, tags that are closed, and no text of the environment's.
    """

    act: Act
    what: str
    well_formed: bool


def read_turn(text: str) -> Turn:
    """What the reply does."""
    found = _ACTION.search(text)
    if found is None:
        return Turn(Act.NOTHING, "", well_formed=False)
    tags = _ACTION_TAGS.findall(text)
    well_formed = (
        len(tags) == 2
        and not text[found.end() :].strip()
        and not any(each in text for each in _FOREIGN)
        and _thinks_well(text[: found.start()], found[2])
        and bool(found[2].strip())
    )
    return Turn(Act(found[1]), found[2].strip(), well_formed)


def _thinks_well(before: str, inside: str) -> bool:
    """Thoughts are closed before the action; a template may have opened the first one in the prompt."""
    if "<think>" in inside or "</think>" in inside:
        return False
    opened, closed = before.count("<think>"), before.count("</think>")
    return closed - opened in (0, 1) and before.rfind("<think>") <= before.rfind("</think>")


def information(passages: Sequence[Passage], *, most_chars: int) -> str:
    """Passages as the policy reads them."""
    if not passages:
        return "<information>\nNothing was found.\n</information>"
    told = (
        f"[{number}] ({each.url}) {each.contents[:most_chars]}"
        if each.url
        else f"[{number}] {each.contents[:most_chars]}"
        for number, each in enumerate(passages, start=1)
    )
    return "<information>\n" + "\n".join(told) + "\n</information>"


REMINDER = (
    "Nothing was done: a reply must end with one action, <search>…</search> or <answer>…</answer>. Please try again."
)
