"""What a client is answered: the same turn for a retry, forks that are forks, limits that aren't errors."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from astraflow.errors import EngineError, EnvError
from astraflow.messages import Reason
from tests.gateway.world import ADD, CALLS_ADD, RUN_KEY, USER, Played, chat, world
from tests.support import eventually

RETRY = {"x_stainless_retry_count": "1"}
TOOLS = [{"type": "function", "function": ADD}]


def text_of(answer: Any) -> Any:
    return answer["choices"][0]["message"]["content"]


async def test_a_retry_is_given_the_turn_that_was_sampled(tmp_path: Path) -> None:
    async with world(tmp_path) as found, found.session("one", "two", "three") as played:
        first = await found.post("/chat/completions", chat(USER), played.key)
        again = await found.post("/chat/completions", chat(USER), played.key, **RETRY)
        anew = await found.post("/chat/completions", chat(USER), played.key)
        assert first == again
        assert (text_of(first[1]), text_of(anew[1])) == ("one", "two")
        assert text_of((await found.post("/v1/chat/completions", chat(USER, x=1), played.key, **RETRY))[1]) == "three"
        assert len(found.says.calls) == 3


async def test_retries_of_calls_in_flight_join_one_each(tmp_path: Path) -> None:
    async with world(tmp_path) as found, found.session("one", "two") as played:
        found.says.gate.clear()
        async with asyncio.TaskGroup() as group:
            lost = [group.create_task(found.post("/chat/completions", chat(USER), played.key)) for _ in range(2)]
            await eventually(lambda: len(found.says.calls) == 2)
            for each in lost:
                each.cancel()
        async with asyncio.TaskGroup() as group:
            retried = [
                group.create_task(found.post("/chat/completions", chat(USER), played.key, **RETRY)) for _ in range(2)
            ]
            found.says.gate.set()
        assert sorted(text_of(each.result()[1]) for each in retried) == ["one", "two"]
        assert len(found.says.calls) == 2


async def test_a_call_in_flight_ends_with_its_session(tmp_path: Path) -> None:
    async with world(tmp_path) as found, found.session("one") as played:
        found.says.gate.clear()
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(found.post("/chat/completions", chat(USER), played.key))
            await eventually(lambda: found.says.calls)
            assert await found.post("/cancel", {"reason": "broken"}, played.key) == (200, {"ended": True})
        status, body = asked.result()
        assert (status, body["error"]["code"]) == (409, "session_ended")
        await found.says.cancelled.wait()
    assert played.outcome is not None
    assert (played.outcome.reason, played.outcome.error) == (Reason.ENV, "its client cancelled it: broken")


@pytest.mark.parametrize(
    "back",
    [
        {"content": "I add them."},  # its calls left out
        {"content": "I ADD them.", "tool_calls": 1},
        {"content": "I add them.", "tool_calls": 2},
    ],
)
async def test_a_client_that_rewrites_a_reply_forks(tmp_path: Path, back: dict[str, Any]) -> None:
    async with world(tmp_path) as found, found.session(CALLS_ADD, "7") as played:
        _, answer = await found.post("/chat/completions", chat(USER, tools=TOOLS), played.key)
        calls = answer["choices"][0]["message"]["tool_calls"]
        if back.get("tool_calls") == 2:
            calls[0]["function"]["arguments"] = '{"a": 3, "b": 5}'
        message = {"role": "assistant", **back, "tool_calls": calls if "tool_calls" in back else None}
        await found.post("/chat/completions", chat(USER, message, USER, tools=TOOLS), played.key)
        assert found.recording.fork_reasons == {"agent": 1}
        assert len(found.recording.conversations) == 2


@pytest.mark.parametrize("ending", ["", "</code>"])
async def test_a_reply_is_shown_up_to_a_stop_string_and_found_with_it_and_without(tmp_path: Path, ending: str) -> None:
    async with world(tmp_path) as found, found.session("x = 1</code> and more", "7") as played:
        _, answer = await found.post("/chat/completions", chat(USER, stop=["</code>"]), played.key)
        assert (text_of(answer), answer["choices"][0]["finish_reason"]) == ("x = 1", "stop")
        back = {"role": "assistant", "content": "x = 1" + ending}
        await found.post("/chat/completions", chat(USER, back, USER), played.key)
        assert (found.recording.forks, len(found.recording.conversations)) == (0, 1)


@pytest.mark.parametrize(
    "said",
    [
        '<tool_call>{"name": "add", "arguments": {"a": 3}',
        '<tool_call>{"name": "add", "arguments": "a"}</tool_call>',
        "<tool_call>{'name': 'add'}</tool_call>",
        '{"name": "add", "arguments": {}}',
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        "<tool_call>" + "[" * 5000 + "</tool_call>",
    ],
)
async def test_what_is_no_whole_call_stays_text(tmp_path: Path, said: str) -> None:
    async with world(tmp_path) as found, found.session(said) as played:
        _, answer = await found.post("/chat/completions", chat(USER, tools=TOOLS), played.key)
        (choice,) = answer["choices"]
        assert "tool_calls" not in choice["message"]
        assert said.startswith(choice["message"]["content"])  # 200 tokens of it


async def test_an_episode_that_has_spent_its_tokens_ends_like_any_that_runs_into_a_limit(tmp_path: Path) -> None:
    async with world(tmp_path) as found, found.session("a b c d e f", max_tokens=3) as played:
        for finish in ("length", "length"):
            _, answer = await found.post("/chat/completions", chat(USER), played.key)
            assert answer["choices"][0]["finish_reason"] == finish
        status, answer = await found.post("/chat/completions", chat(USER), played.key)
        assert (status, answer["error"]["code"]) == (400, "budget_spent")
        assert (await found.post("/reward", {"reward": 1.0}, played.key))[0] == 200
    assert played.outcome is not None
    assert played.outcome.reason is Reason.TRUNCATED


async def test_the_environment_grades_the_answer(tmp_path: Path) -> None:
    for body, reward in (({}, 1.0), ({"answer": "8"}, 0.0), ({"answer": "7"}, 1.0)):
        async with world(tmp_path) as found, found.session("7") as played:
            await found.post("/chat/completions", chat(USER), played.key)
            assert (await found.post("/end", body, played.key))[0] == 200
        assert played.outcome is not None
        assert (dict(played.outcome.rewards), played.outcome.correct) == ({"solver": reward}, reward)


async def test_a_policy_that_cannot_answer_ends_the_session(tmp_path: Path) -> None:
    async with world(tmp_path) as found, found.session(EngineError("five replicas went silent")) as played:
        status, answer = await found.post("/chat/completions", chat(USER), played.key)
        assert (status, answer["error"]["code"]) == (410, "session_lost")
        assert "five replicas went silent; take another one" in answer["error"]["message"]
    assert isinstance(played.error, EngineError)


async def test_an_episode_whose_time_is_up_says_so(tmp_path: Path) -> None:
    async with world(tmp_path) as found:
        async with found.session() as played:
            pass
        for path in ("/chat/completions", "/reward"):
            body = chat(USER) if "chat" in path else {"rewards": {"solver": 1}}
            status, answer = await found.post(path, body, played.key)
            assert (status, answer["error"]["code"]) == (410, "session_lost")


async def test_a_client_that_leaves_a_session_unasked_and_ungraded_is_told_of(tmp_path: Path) -> None:
    async with world(tmp_path) as found, found.session() as played:
        assert (await found.post("/end", {}, played.key))[0] == 200
    assert isinstance(played.error, EnvError)
    assert "it asked no policy" in str(played.error)


async def test_sessions_are_waited_for_and_handed_out_once(tmp_path: Path) -> None:
    async with world(tmp_path) as found:
        status, answer = await found.post("/sessions", {"wait_s": 0}, RUN_KEY)
        assert (status, answer["error"]["code"]) == (429, "no_session")
        status, answer = await found.post("/sessions", {"env": "gaem"}, RUN_KEY)
        assert (status, answer["error"]["message"]) == (
            404,
            "no sessions of environment 'gaem' are given here; did you mean 'game'?; there are game",
        )
        async with asyncio.TaskGroup() as group:
            keyed = {"Idempotency_Key": "k1"}
            waiting = group.create_task(found.post("/sessions", {}, RUN_KEY, **keyed))
            assert await found.sessions.demanded("game") == 1
            running = group.create_task(Played(found).play())
            status, taken = await waiting
            assert status == 200
            assert taken["messages"] == [{"role": "user", "content": "3+4="}]
            assert (await found.post("/sessions", {}, RUN_KEY, **keyed))[1]["key"] == taken["key"]
            assert (await found.post("/sessions", {"wait_s": 0}, RUN_KEY))[0] == 429
            running.cancel()
