"""What was said in a conversation, shortened for people. Pure; nothing here is trained on.

Invariant: of every message that is kept both ends are, and what is left out is said where it was.
"""

from collections.abc import Sequence

from astraflow.messages import Spoken

_MOST_MESSAGES = 200  # of a longer conversation the beginning and the end are kept
_NOTE_CHARS = 40  # about what a note on what is left out takes


def shortened(messages: Sequence[Spoken], most_chars: int) -> tuple[Spoken, ...]:
    """The messages with about `most_chars` characters in all: the longest are cut in their middle. () if it is 0."""
    if most_chars <= 0:
        return ()
    kept, left_out = list(messages), len(messages) - _MOST_MESSAGES
    if left_out > 0:
        half = _MOST_MESSAGES // 2
        note = Spoken(role="", content=f"… {left_out} messages left out …")
        kept = [*messages[:half], note, *messages[-half:]]
    longest = _longest([len(each.content) for each in kept], most_chars)
    return tuple(
        each if len(each.content) <= longest else Spoken(role=each.role, content=_cut(each.content, longest))
        for each in kept
    )


def _longest(lengths: list[int], most: int) -> int:
    """The largest bound on each of the lengths with which their sum is at most `most`."""
    for at, length in enumerate(sorted(lengths)):
        share = most // (len(lengths) - at)  # of each that isn't shorter than this one
        if length > share:
            return share
        most -= length
    return max(lengths, default=0)


def _cut(text: str, most: int) -> str:
    """Both ends of the text."""
    head = max(0, most - _NOTE_CHARS + 1) // 2
    tail = max(0, most - _NOTE_CHARS) // 2
    left_out = len(text) - head - tail
    cut = f"{text[:head]}\n… {left_out} characters left out …\n{text[len(text) - tail :]}"
    return cut if len(cut) < len(text) else text
