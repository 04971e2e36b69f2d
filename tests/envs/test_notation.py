"""Reading golds and replies is total, quick, and never makes something of nothing."""

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from astraflow.envs.answers import MAX_TEXT_CHARS
from astraflow.envs.gold import gold
from astraflow.envs.notation import (
    choice,
    chosen_letter,
    expression,
    is_words,
    labelled,
    last_answer,
    last_box,
    said_answer,
    same_text,
)

PIECES = st.sampled_from(
    ["\\boxed{", "{", "}", "$", "\\frac", "\\text{", "####", "1", "C", "(", ")", " ", "\\", "e", "/"]
)
TEXTS = st.text(max_size=60) | st.lists(PIECES, max_size=12).map("".join)


@given(TEXTS)
@example("\\boxed")
@example("1e99")
@example("1 1/0")
@example("²")
def test_an_expected_answer_is_refused_or_says_something(text):
    try:
        found = gold(text)
    except ValueError:
        return
    assert found.strip()
    assert not same_text("", found)


@given(TEXTS)
def test_any_reply_is_read(text):
    assert isinstance(last_answer(text), str)
    assert chosen_letter(text) in ("", *"ABCDEFGHIJ")
    assert choice(text) in ("", *"ABCDEFGHIJ")
    assert isinstance(expression(text), str)
    assert isinstance(said_answer(text), str)
    assert is_words(text) in (True, False)
    assert not same_text(text, "")


@pytest.mark.parametrize(
    "piece",
    [
        "\\boxed{",
        "{",
        "}",
        "\\text{",
        "1 ",
        "1e",
        "1 1/",
        "answer is ",
        "(A) ",
        "A. ",
        "\\frac",
        "1\\frac{1}{",
        " ",
        "A",
        "*",
        "answer ",
        "1\\ ",
        "\\",
        "1,",
        "$",
        "option ",
        "_",
        "\\boxed\\",
        "[(",
        "一1",
    ],
)
def test_hostile_replies_are_read_in_milliseconds(piece):
    text = (piece * MAX_TEXT_CHARS)[:MAX_TEXT_CHARS]
    start = time.process_time()
    for read in (last_box, last_answer, chosen_letter, choice, labelled, expression, is_words, said_answer):
        read(text)
    same_text(text, text)
    assert time.process_time() - start < 0.3


@pytest.mark.parametrize(
    ("text", "box"),
    [
        ("\\boxed{1}", "1"),
        ("\\boxed{\\frac{1}{2}} or so", "\\frac{1}{2}"),
        ("\\boxed{\\{1,2\\}}", "\\{1,2\\}"),
        ("\\boxed {1}", "1"),
        ("\\fbox{1}", "1"),
        ("\\boxed{1} \\boxed{ 2 }", "2"),
        ("\\boxed{1} \\boxed{2", ""),
        ("\\boxed{}", ""),
        ("\\boxed 3.5.", "3.5"),
        ("\\boxed-1", "-1"),
        ("\\boxed as", None),
        ("boxed{1}", None),
    ],
)
def test_the_last_box(text, box):
    assert last_box(text) == box


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("1e3", "1000"),
        ("-2.5E-3", "-0.0025"),
        ("1e31", "1e31"),
        ("v1e3", "v1e3"),
        ("1e3x", "1e3x"),
        ("1 1/2", "3/2"),
        ("-1 1/2", "-3/2"),
        ("1 3/2", "1 3/2"),
        ("1 1/0", "1 1/0"),
        ("1 1/2/3", "1 1/2/3"),
        ("2\\dfrac13", "\\frac{7}{3}"),
        ("2 \\frac{1}{3}", "\\frac{7}{3}"),
        ("1{,}000\\,000", "1000000"),
        ("1{,}00", "1{,}00"),
        ("３．５", "3.5"),
        ("½", "1/2"),
        ("1½", "3/2"),
        ("x²⁰", "x^{20}"),
        ("x⁻¹", "x^{-1}"),
        ("√2 + √(x+1)", "\\sqrt{2} + \\sqrt{x+1}"),
        ("0.1\\overline{6}", "\\frac{15}{90}"),
        ("0.\\overline{3}", "\\frac{3}{9}"),
        ("€5, 7 £ and 5 dollars", "5, 7 and 5"),
    ],
)
def test_numbers_are_written_out(text, meant):
    assert expression(text) == meant
