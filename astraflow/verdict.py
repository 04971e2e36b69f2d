"""What is said of a request, a task or an order before it is worked on: ok, or refused with a reason and a text.

It is no error: whoever asked decides what follows. Invariant: a refusal has both a reason and a text.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """Ok, unless it has a reason."""

    reason: str | None = None  # a word to count by; None = ok
    text: str = ""  # a sentence for people

    @property
    def ok(self) -> bool:
        return self.reason is None


OK = Verdict()


def refused(reason: str, text: str) -> Verdict:
    """A refusal. `reason`: a word to count by; `text`: a sentence for people."""
    assert reason, text
    assert text, reason
    return Verdict(reason, text)
