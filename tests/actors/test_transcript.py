"""What is kept of a conversation for people: everything once, in order, within its bound."""

import numpy as np
import pytest

from astraflow.actors.rollout.transcript import shortened
from astraflow.messages import Spoken
from tests.actors.test_policy_handle import Forgetful, Scripted, Tagged, assistant, handle, user


def said(record: object) -> list[list[tuple[str, str]]]:
    found = record.trajectories({"solver": 0.0})  # type: ignore[attr-defined]
    return [[(each.role, each.content) for each in trajectory.messages] for trajectory in found]


async def test_each_message_of_a_conversation_is_kept_once() -> None:
    policy, record = handle(Scripted("xy~", "z~"), tokenizer=Tagged())
    record.transcript_chars = 1000
    await policy.chat([user("ab")])
    await policy.chat([user("ab"), assistant("xy"), user("cd"), user("ef")])
    assert said(record) == [[("user", "ab"), ("assistant", "xy"), ("user", "cd"), ("user", "ef"), ("assistant", "z")]]


async def test_a_rewritten_history_is_told_whole_in_its_own_trajectory() -> None:
    policy, record = handle(Scripted("<think>a</think>b~", "c~"), tokenizer=Forgetful())
    record.transcript_chars = 1000
    await policy.chat([user("ab")])
    await policy.chat([user("ab"), assistant("<think>a</think>b"), user("cd")])
    first, second = said(record)
    assert first[-1] == ("assistant", "<think>a</think>b")
    assert second == [("user", "ab"), ("assistant", "<think>a</think>b"), ("user", "cd"), ("assistant", "c")]


async def test_what_was_asked_in_tokens_is_told_as_text() -> None:
    policy, record = handle(Scripted("xy", "z"))
    record.transcript_chars = 1000
    await policy.complete("ab")
    await policy.generate(np.array([ord(letter) for letter in "abxycd"], np.int32))
    assert said(record) == [[("context", "ab"), ("assistant", "xy"), ("context", "cd"), ("assistant", "z")]]


async def test_nothing_is_kept_where_nobody_wants_it() -> None:
    policy, record = handle(Scripted("xy"))
    await policy.chat([user("ab")])
    assert said(record) == [[]]


@pytest.mark.parametrize("most", [1, 50, 1_000, 16_000])
def test_a_long_conversation_stays_within_its_bound_and_keeps_short_messages_whole(most: int) -> None:
    messages = [
        Spoken(role="user", content=letter * length) for letter, length in (("a", 10), ("b", 9000), ("c", 50_000))
    ]
    kept = shortened(messages, most)
    assert sum(len(each.content) for each in kept) <= max(most, 200)
    assert kept[0].content == "a" * 10
    assert "characters left out" in kept[2].content
    if most >= 1000:
        assert kept[2].content.startswith("c")
        assert kept[2].content.endswith("c")


def test_of_very_many_messages_both_ends_are_kept() -> None:
    kept = shortened([Spoken(role="user", content=str(number)) for number in range(1000)], 16_000)
    assert (kept[0].content, kept[100].content, kept[-1].content) == ("0", "… 800 messages left out …", "999")
    assert len(kept) == 201


def test_what_fits_is_kept_as_it_is() -> None:
    messages = (Spoken(role="user", content="x" * 8000), Spoken(role="assistant", content="y" * 8000))
    assert shortened(messages, 16_000) == messages
    assert shortened(messages, 0) == ()
    assert shortened([], 16_000) == ()
