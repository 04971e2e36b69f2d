"""Texts from elsewhere on a terminal."""

import pytest

from astraflow.messages import Event, Member, MemberState
from astraflow.messages.printable import printable, with_printable_texts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain text", "plain text"),
        ("größer 漢字 👩‍🚀 é", "größer 漢字 👩‍🚀 é"),
        ("\x1b[2J\x1b]0;title\x07", "�[2J�]0;title�"),
        ("a\nb\r\nc\td", "a b  c d"),
        ("\x9b31m", "�31m"),
        ("a\u202eb\u2066c", "a�b�c"),
        ("x\u2028y\x85z", "x y z"),
        ("half \ud800", "half �"),
        ("\x00\x7f", "��"),
        ("\ufeff\u200b", "��"),
    ],
)
def test_what_moves_a_terminal_is_replaced(text: str, expected: str) -> None:
    assert printable(text) == expected


def test_every_text_of_a_message_is_printable() -> None:
    evil = "\x1b[31m"
    member = Member(
        actor=evil,
        role=evil,
        node=evil,
        incarnation="i",
        pid=1,
        state=MemberState.READY,
        gauges={evil: 1.0},
        unserved={evil: evil},
        roles=(evil,),
        about=evil,
    )
    event = Event(level=evil, name=evil, text=evil, actor=evil, at=1.0, fields={"deep": [{evil: [evil, 1, b"\x1b"]}]})
    for message in (member, event):
        clean = with_printable_texts(message)
        assert "\\x1b[31m" not in repr(clean)
        assert type(clean) is type(message)
    assert with_printable_texts(member).state is MemberState.READY
    plain = Member(actor="a", role="r", node="n", incarnation="i", pid=1, state=MemberState.READY)
    assert with_printable_texts(plain) is plain
