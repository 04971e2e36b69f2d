"""Held-out questions: by text alone, in the asked share."""

from hypothesis import given
from hypothesis import strategies as st

from astraflow.holdout import is_held_out, question_share


def test_the_share_of_a_text_is_fixed_for_ever():
    assert question_share("What is 1 + 1?") == 0.44910534966936017


@given(st.text(alphabet=st.characters()))
def test_shares_lie_in_the_unit_interval_and_bounds_are_exact(text):
    assert 0 <= question_share(text) < 1
    assert not is_held_out(text, 0.0)
    assert is_held_out(text, 1.0)


def test_a_larger_fraction_only_adds_questions():
    texts = [f"q{i}" for i in range(2000)]
    tenth, third = ({t for t in texts if is_held_out(t, f)} for f in (0.1, 1 / 3))
    assert tenth < third
    assert 150 <= len(tenth) <= 250
    assert 580 <= len(third) <= 750
