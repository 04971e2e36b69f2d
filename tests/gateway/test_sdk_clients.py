"""The SDKs of OpenAI and Anthropic play whole tool loops: what they send back is found in the tokens of record."""

import json
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.gateway.world import ADD, CALLS_ADD, Played, World, world


def of_openai(played: Played) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{played.world.url}/v1", api_key=played.key)


def of_anthropic(played: Played) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=played.world.url, api_key=played.key)


def check_record(found: World, *, client: str, played: Played) -> None:
    """One trajectory of two turns, whose second prompt begins with the first's tokens."""
    first, second = found.says.calls
    assert played.error is None
    assert played.outcome is not None
    assert (dict(played.outcome.rewards), played.outcome.metrics) == ({"solver": 1.0}, {f"client/{client}": 1.0})
    assert found.recording.forks == 0
    (conversation,) = found.recording.conversations
    assert len(conversation.turns) == 2
    record = first.prompt_tokens.tolist() + conversation.turns[0].completion_tokens.numpy().tolist()
    assert second.prompt_tokens.tolist()[: len(record)] == record
    behind = "".join(map(found.says.tokenizer.text_of, second.prompt_tokens.tolist()[len(record) :]))
    assert "7" in behind


@pytest.mark.parametrize("stream", [False, True])
async def test_openai_chat_completions(tmp_path: Path, stream: bool) -> None:
    async with world(tmp_path) as found:
        async with found.session(CALLS_ADD, "It is 7.") as played, of_openai(played) as client:
            assert [model.id for model in (await client.models.list()).data] == ["solver"]
            history: list[Any] = [{"role": "user", "content": "What is 3+4?"}]
            tools: Any = [{"type": "function", "function": ADD}]
            message = await chat_turn(client, history, tools, stream=stream)
            (call,) = message["tool_calls"]
            assert json.loads(call["function"]["arguments"]) == {"a": 3, "b": 4}
            rewritten = {**call["function"], "arguments": '{"b":4,"a":3}'}  # as pydantic-ai writes it anew
            history.append({**message, "tool_calls": [{**call, "function": rewritten}]})
            history.append({"role": "tool", "tool_call_id": call["id"], "content": "7"})
            last = await chat_turn(client, history, tools, stream=stream)
            assert (last["content"], last.get("tool_calls")) == ("It is 7.", None)
            await client.post("/reward", body={"reward": 1.0}, cast_to=object)
        check_record(found, client="asyncopenai", played=played)


async def chat_turn(client: openai.AsyncOpenAI, history: list[Any], tools: Any, *, stream: bool) -> dict[str, Any]:
    """The message as the SDK puts it together; how it ended is right."""
    if stream:
        usage = {"include_usage": True}
        async with client.chat.completions.stream(
            model="solver", messages=history, tools=tools, stream_options=usage
        ) as events:
            answer: Any = await events.get_final_completion()
    else:
        answer = await client.chat.completions.create(model="solver", messages=history, tools=tools)
    (choice,) = answer.choices
    assert choice.finish_reason == ("tool_calls" if choice.message.tool_calls else "stop")
    assert answer.usage.prompt_tokens > 0 < answer.usage.completion_tokens
    message = choice.message.model_dump(exclude_none=True)
    for call in message.get("tool_calls", ()):
        call["function"].pop("parsed_arguments", None)
    message.pop("parsed", None)
    return message


@pytest.mark.parametrize("stream", [False, True])
async def test_openai_responses(tmp_path: Path, stream: bool) -> None:
    async with world(tmp_path) as found:
        async with found.session(CALLS_ADD, "It is 7.") as played, of_openai(played) as client:
            items: list[Any] = [{"role": "user", "content": "What is 3+4?"}]
            tools: Any = [{"type": "function", "strict": False, **ADD}]

            async def turn() -> Any:
                if not stream:
                    return await client.responses.create(model="solver", input=items, tools=tools)
                async with client.responses.stream(model="solver", input=items, tools=tools) as events:
                    return await events.get_final_response()

            answer = await turn()
            assert [item.type for item in answer.output] == ["message", "function_call"]
            call = answer.output[1]
            assert json.loads(call.arguments) == {"a": 3, "b": 4}
            items += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in answer.output]
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": "7"})
            last = await turn()
            assert (last.output_text, last.status) == ("It is 7.", "completed")
            await client.post("/reward", body={"reward": 1.0}, cast_to=object)
        check_record(found, client="asyncopenai", played=played)


async def test_openai_completions(tmp_path: Path) -> None:
    async with world(tmp_path) as found, found.session("7", "8") as played, of_openai(played) as client:
        answer = await client.completions.create(model="solver", prompt="3+4=", max_tokens=9, stop="x")
        assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("7", "stop")
        ids = found.says.tokenizer.encode("3+5=")
        parts = [part async for part in await client.completions.create(model="solver", prompt=ids, stream=True)]
        assert "".join(part.choices[0].text for part in parts) == "8"
        assert [call.prompt_tokens.tolist() for call in found.says.calls] == [
            found.says.tokenizer.encode("3+4="),
            ids,
        ]
        assert [call.sampling.max_new_tokens for call in found.says.calls] == [9, 200]


@pytest.mark.parametrize("stream", [False, True])
async def test_anthropic_messages(tmp_path: Path, stream: bool) -> None:
    async with world(tmp_path) as found:
        async with found.session(CALLS_ADD, "It is 7.") as played, of_anthropic(played) as client:
            messages: list[Any] = [{"role": "user", "content": "What is 3+4?"}]
            tools: Any = [{"name": "add", "description": "Adds.", "input_schema": ADD["parameters"]}]
            asked: Any = {"model": "solver", "system": "You add.", "messages": messages, "tools": tools}
            counted = await client.messages.count_tokens(**asked)

            async def turn() -> anthropic.types.Message:
                if not stream:
                    return await client.messages.create(max_tokens=16_384, **asked)
                async with client.messages.stream(max_tokens=16_384, **asked) as events:
                    return await events.get_final_message()

            answer = await turn()
            assert answer.usage.input_tokens == counted.input_tokens
            assert (answer.stop_reason, [block.type for block in answer.content]) == ("tool_use", ["text", "tool_use"])
            call: Any = answer.content[1]
            assert call.input == {"a": 3, "b": 4}
            messages.append({"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in answer.content]})
            result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "7"}]}
            messages.append({"role": "user", "content": [result]})
            last: Any = await turn()
            assert (last.stop_reason, last.content[0].text) == ("end_turn", "It is 7.")
            await client.post("/v1/reward", body={"reward": 1.0}, cast_to=object)
        check_record(found, client="asyncanthropic", played=played)
