"""Stop strings: where a reply ends by one, however its tokens come; and the settings that go with them."""

from collections.abc import Sequence

import pytest

from astraflow.actors.rollout.stop_strings import StopStrings
from astraflow.messages import Sampling
from astraflow.messages.sampling import fault_of_sampling, why_untrainable


def _decode(tokens: Sequence[int]) -> str:
    """A token is a byte."""
    return bytes(tokens).decode(errors="replace")


def _spoken(text: str, stop: tuple[str, ...], *, piece: int, least: int = 0) -> tuple[str, int]:
    """(what is kept of a reply that comes in pieces, letters from the stop string on)."""
    tokens, kept, stops = text.encode(), b"", StopStrings(stop, _decode, least=least)
    for at in range(0, len(tokens), piece):
        part = tokens[at : at + piece]
        end = stops.end_in(list(part))
        kept += part[:end]
        if end is not None:
            break
    return kept.decode(errors="replace"), stops.letters


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 100])
@pytest.mark.parametrize(
    ("text", "stop", "kept", "letters"),
    [
        ("one two three", (" tw",), "one tw", 3),
        ("one two three", ("three", "two"), "one two", 3),
        ("one two three", ("four",), "one two three", 0),
        ("größer als 3 🙂 und", ("🙂",), "größer als 3 🙂", 1),
        ("größer als 3 🙂 und", ("ß", "🙂"), "größ", 1),
        ("aaab", ("aab",), "aaab", 3),
        ("x" * 500 + "</end> more", ("</end>",), "x" * 500 + "</end>", 6),
    ],
)
def test_the_first_token_with_which_a_stop_string_stands_in_the_text_is_the_last(
    text: str, stop: tuple[str, ...], kept: str, letters: int, piece: int
) -> None:
    assert _spoken(text, stop, piece=piece) == (kept, letters)


@pytest.mark.parametrize("piece", [1, 4, 100])
def test_before_min_tokens_no_stop_string_counts(piece: int) -> None:
    assert _spoken("ab. cd. ef", (".",), piece=piece, least=4) == ("ab. cd.", 1)


@pytest.mark.parametrize(
    ("sampling", "says"),
    [
        (Sampling(stop=("",)), "empty string"),
        (Sampling(stop=("x",) * 17), "17 strings"),
        (Sampling(stop=("x" * 257,)), "257 letters"),
        (Sampling(seed=-1), "seed is -1"),
        (Sampling(min_tokens=-1), "min_tokens is -1"),
        (Sampling(presence_penalty=2.5), "presence_penalty is 2.5"),
        (Sampling(frequency_penalty=float("nan")), "frequency_penalty is nan"),
    ],
)
def test_what_means_nothing_is_refused_in_words(sampling: Sampling, says: str) -> None:
    assert says in fault_of_sampling(sampling)


def test_what_changes_the_distribution_is_not_trained_and_stop_strings_and_seeds_are() -> None:
    assert "min_tokens" in why_untrainable(Sampling(min_tokens=2))
    assert "frequency_penalty" in why_untrainable(Sampling(frequency_penalty=0.5))
    assert why_untrainable(Sampling(stop=("x",), seed=3)) == ""
