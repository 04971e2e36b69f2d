"""Which questions are held out: decided by the question's own text, so that no index can bring one back.

Indices alone don't separate training from evaluation where few questions exist: there are 200 one-digit sums and
differences, so a thousand training indices meet every one of them. Invariant: with the same fraction, a text is either
always or never held out, in every process and whatever the seed.
"""

import hashlib

HELD_OUT_FIRST = 1_000_000  # default index where held-out tasks begin; equals EvalSection.first's default


def question_share(text: str) -> float:
    """The question's fixed place in [0, 1), uniform over texts. Source: the first 8 bytes of its sha256."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def is_held_out(text: str, fraction: float) -> bool:
    """Whether the question belongs to the held-out share. `fraction` in [0, 1]: 0 holds out nothing, 1 everything."""
    return question_share(text) < fraction
