import asyncio
import math
import re
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from astraflow.actors.rollout.budget import Budget
from astraflow.actors.rollout.call import Call, Completion
from astraflow.actors.rollout.call_stream import merge_spans
from astraflow.actors.rollout.handle import Play, RecordedPolicy, turn_seed
from astraflow.actors.rollout.recording import Recording
from astraflow.envs.base import ChatMessage
from astraflow.errors import BudgetError, ContextError, EnvError, RequestError
from astraflow.messages import Sampling, Task, VersionSpan


def user(content: str) -> ChatMessage:
    return ChatMessage("user", content)


def assistant(content: str) -> ChatMessage:
    return ChatMessage("assistant", content)


def text(tokens: NDArray[np.int32]) -> str:
    return "".join(chr(token) for token in tokens)


class Letters:
    """A tokenizer of single letters; token 126, "~", ends a reply, and letters above 128 mean those below."""

    eos_token_ids = (126,)
    vocab_size = 256

    def template(self, messages: Sequence[ChatMessage], tools: Sequence[object] = ()) -> str:
        return "".join(message.content for message in messages)

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(chr(token % 128) for token in tokens if token != 126)

    def encode_behind(self, text: str, at: int) -> list[int] | None:
        return self.encode(text[at:])

    def told(self, tokens: Sequence[int], text: str) -> str:
        return text

    def text_of(self, token: int) -> str:
        return chr(token)


class Tagged(Letters):
    """A chat template with roles, an end token behind every message, and a trim of what the assistant said."""

    def template(self, messages: Sequence[ChatMessage], tools: Sequence[object] = ()) -> str:
        return "".join(f"<{each.role[0]}>{each.content.strip()}~" for each in messages) + "<a>"


class Forgetful(Tagged):
    """As Qwen3's: thoughts of earlier turns are left out."""

    def template(self, messages: Sequence[ChatMessage], tools: Sequence[object] = ()) -> str:
        return super().template([ChatMessage(m.role, m.content.rpartition("</think>")[2]) for m in messages])


class Scripted:
    """A requester that answers from a list and remembers what it was asked."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.tokens: list[list[int]] = []  # instead of the answers' letters
        self.calls: list[Call] = []

    async def generate(self, call: Call) -> Completion:
        self.calls.append(call)
        answer = self.answers.pop(0)[: call.sampling.max_new_tokens]
        tokens = np.array(self.tokens.pop(0) if self.tokens else [ord(letter) for letter in answer], np.int32)
        return Completion(
            tokens=tokens,
            logprobs=np.full(len(tokens), -0.5, np.float32),
            versions=(VersionSpan(version=3, start=0, end=len(tokens)),),
            finish_reason="stop",
            attempts=1,
        )


def handle(
    client: Scripted, *, tokenizer: Letters | None = None, budget: Budget | None = None, **task: object
) -> tuple[RecordedPolicy, Recording]:
    fields = {"id": "i/s/0/0/1", "group_id": "i/s/0/0", "group_size": 2, "member": 1, "source": "s", "env": "e"}
    record = Recording()
    play = Play(
        task=Task(**{**fields, "payload": {}, "seed": 7, **task}),
        client=client,
        recording=record,
        budget=budget or Budget(),
    )
    sampling = Sampling(max_new_tokens=5 if budget else 50)
    return RecordedPolicy(play, policy="solver", sampling=sampling, tokenizer=tokenizer or Letters()), record


async def test_a_follow_up_turn_appends_only_what_is_new() -> None:
    client = Scripted("xy", "z")
    policy, record = handle(client)
    await policy.chat([user("ab")])
    await policy.chat([user("ab"), assistant("xy"), user("cd")])

    (trajectory,) = record.trajectories({"solver": 1.5}, {"part": 1.0})

    assert [text(turn.context_tokens.numpy()) for turn in trajectory.turns] == ["ab", "cd"]
    assert [text(turn.completion_tokens.numpy()) for turn in trajectory.turns] == ["xy", "z"]
    assert (trajectory.reward, trajectory.policy, trajectory.text) == (1.5, "solver", "xy\nz")


async def test_a_history_that_the_agent_rewrote_is_a_new_trajectory() -> None:
    client = Scripted("xy", "z")
    policy, record = handle(client)
    await policy.chat([user("ab")])
    await policy.chat([user("ab"), assistant("x!"), user("cd")])

    first, second = record.trajectories({"solver": 0.0})

    assert [len(item.turns) for item in (first, second)] == [1, 1]
    assert text(second.turns[0].context_tokens.numpy()) == "abx!cd"


async def test_what_was_sampled_is_never_tokenised_again() -> None:
    """The engine said "xy" in tokens that the tokenizer would not have chosen."""
    client = Scripted("xy", "z")
    client.tokens = [[ord("x") + 128, ord("y") + 128]]
    policy, record = handle(client)
    await policy.chat([user("ab")])
    await policy.chat([user("ab"), assistant("xy"), user("cd")])

    assert client.calls[1].prompt_tokens.tolist() == [97, 98, 120 + 128, 121 + 128, 99, 100]
    assert record.forks == 0


async def test_an_end_token_that_was_sampled_is_not_said_twice() -> None:
    client = Scripted("xy~", "z~")
    policy, record = handle(client, tokenizer=Tagged())
    await policy.chat([user("ab")])
    await policy.chat([user("ab"), assistant("xy"), user("cd")])

    assert text(client.calls[1].prompt_tokens) == "<u>ab~<a>xy~<u>cd~<a>"
    (trajectory,) = record.trajectories({"solver": 1.0})
    assert [text(turn.context_tokens.numpy()) for turn in trajectory.turns] == ["<u>ab~<a>", "<u>cd~<a>"]


async def test_a_reply_that_was_cut_off_is_ended_by_the_template() -> None:
    client = Scripted("xy", "z~")
    policy, _ = handle(client, tokenizer=Tagged())
    await policy.chat([user("ab")])
    await policy.chat([user("ab"), assistant("xy"), user("cd")])
    assert text(client.calls[1].prompt_tokens) == "<u>ab~<a>xy~<u>cd~<a>"


async def test_a_template_that_drops_earlier_thinking_makes_a_fork_that_is_counted() -> None:
    client = Scripted("<think>hm</think>4~", "5~", "6~")
    policy, record = handle(client, tokenizer=Forgetful())
    history = [user("2+2")]
    for question in ("2+3", "2+4"):
        reply = await policy.chat(history)
        history += [assistant(reply.text), user(question)]
    await policy.chat(history)

    assert text(client.calls[1].prompt_tokens) == "<u>2+2~<a>4~<u>2+3~<a>"
    assert record.forks == 1
    first, second = record.trajectories({"solver": 1.0})
    assert [len(first.turns), len(second.turns)] == [1, 2]


async def test_samples_of_the_same_prompt_are_conversations_of_their_own() -> None:
    client = Scripted("x", "y", "z")
    policy, record = handle(client)
    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(policy.chat([user("ab")]))
    await policy.chat([user("ab"), assistant("x"), user("c")])

    assert [len(each.turns) for each in record.trajectories({"solver": 1.0})] == [2, 1]
    assert record.forks == 0


async def test_a_sub_agent_has_its_own_conversations_role_and_parent() -> None:
    client = Scripted("plan", "work", "sub")
    policy, record = handle(client)
    await policy.chat([user("a")])
    worker = policy.spawn("worker")
    await worker.chat([user("a"), assistant("plan"), user("b")])
    await worker.spawn().chat([user("c")])

    found = record.trajectories({"solver": 1.0, "worker": -1.0})
    assert [(each.role, each.parent, each.reward) for each in found] == [
        ("", -1, 1.0),
        ("worker", 0, -1.0),
        ("worker", 1, -1.0),
    ]
    only = record.trajectories({"worker": -1.0})
    assert [(each.role, each.parent) for each in only] == [("worker", -1), ("worker", 0)]


async def test_all_handles_of_an_episode_share_its_budget() -> None:
    client = Scripted("abc", "de", "f")
    policy, _ = handle(client, budget=Budget(max_calls=3, max_tokens=6))
    await policy.chat([user("a")])
    assert client.calls[0].sampling.max_new_tokens == 5
    await policy.spawn().chat([user("a")])
    assert client.calls[1].sampling.max_new_tokens == 3
    await policy.chat([user("a")])
    assert client.calls[2].sampling.max_new_tokens == 1
    with pytest.raises(BudgetError, match="its 3 calls"):
        await policy.chat([user("a")])


def test_a_call_reserves_what_it_may_sample() -> None:
    budget = Budget(max_tokens=10)
    granted = budget.reserve(8)
    assert budget.reserve(8) == 2
    with pytest.raises(BudgetError, match="its 10 tokens"):
        budget.reserve(1)
    budget.settle(granted, 3)
    assert budget.reserve(8) == 5


async def test_calls_carry_the_tasks_seed_versions_and_ids() -> None:
    client = Scripted("x", "y")
    policy, _ = handle(client, min_versions={"solver": 4}, attempt=2)
    await policy.chat([user("a")])
    await policy.generate(np.array([1, 2], np.int32), sampling=Sampling(max_new_tokens=1))

    assert [call.id for call in client.calls] == ["i/s/0/0/1@2#0", "i/s/0/0/1@2#1"]
    assert [call.seed for call in client.calls] == [turn_seed(7, "solver", 0), turn_seed(7, "solver", 1)]
    assert [call.min_version for call in client.calls] == [4, 4]
    assert [call.sampling.max_new_tokens for call in client.calls] == [50, 1]


def test_spans_of_the_same_version_are_joined() -> None:
    spans = [VersionSpan(version=v, start=s, end=e) for v, s, e in ((1, 0, 2), (1, 2, 3), (2, 3, 4), (1, 4, 5))]
    assert [(span.version, span.start, span.end) for span in merge_spans(spans)] == [(1, 0, 3), (2, 3, 4), (1, 4, 5)]


class Refusing(Scripted):
    """Refuses every call after those that it has answers for."""

    async def generate(self, call: Call) -> Completion:
        if not self.answers:
            raise RequestError("the prompt fills it", request_id=call.id, fills_context=True)
        return await super().generate(call)


async def test_a_prompt_that_alone_fills_the_context_is_the_environments_fault() -> None:
    policy, _ = handle(Refusing())
    with pytest.raises(EnvError, match=r"the prompt has 2 tokens, which leaves no room.*the prompt fills it") as caught:
        await policy.chat([user("ab")])
    assert not isinstance(caught.value, BudgetError)


async def test_a_conversation_that_has_filled_the_context_has_spent_its_budget() -> None:
    policy, record = handle(Refusing("xy"), budget=Budget(max_tokens=5))
    await policy.chat([user("ab")])
    for asked in (policy, policy.spawn("worker")):
        with pytest.raises(ContextError, match="has filled the context"):
            await asked.chat([user("ab"), assistant("xy"), user("cd")])
    assert [len(each.turns) for each in record.conversations] == [1]


TRAINED = {"feeds": ("solver",)}


@pytest.mark.parametrize(
    ("sampling", "words"),
    [
        (Sampling(top_k=5), "top_k = 5 cuts"),
        (Sampling(top_p=0.9), "top_p = 0.9 cuts"),
        (Sampling(temperature=0.0), "greedy"),
        (Sampling(temperature=0.001), "use at least 0.05"),
        (Sampling(temperature=0.5, top_p=0.999), "top_p = 0.999"),
    ],
)
async def test_sampling_that_cannot_be_trained_is_refused_where_it_is_trained_only(
    sampling: Sampling, words: str
) -> None:
    client = Scripted("x", "y", "z")
    policy, record = handle(client, **TRAINED)
    with pytest.raises(EnvError, match=re.escape(words)):
        await policy.chat([user("a")], sampling=sampling)
    with pytest.raises(EnvError, match=re.escape(words)):
        await policy.spawn("worker").generate(np.array([1], np.int32), sampling=sampling)
    assert client.calls == []
    assert record.conversations == []
    frozen, _ = handle(client, feeds=("another",))
    evaluated, _ = handle(client, eval_set="held-out", **TRAINED)
    for free in (frozen, evaluated):
        await free.chat([user("a")], sampling=sampling)
    assert [call.sampling.top_k for call in client.calls] == [sampling.top_k] * 2


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=math.nan),
        Sampling(temperature=-1.0),
        Sampling(temperature=math.inf),
        Sampling(top_p=0.0),
        Sampling(top_p=1.5),
        Sampling(top_p=math.nan),
        Sampling(top_k=-1),
        Sampling(max_new_tokens=0),
    ],
)
async def test_sampling_that_means_nothing_is_the_authors_error(sampling: Sampling) -> None:
    policy, _ = handle(Scripted("x"))
    with pytest.raises(EnvError, match="can't be asked so"):
        await policy.chat([user("a")], sampling=sampling)


async def test_a_turn_records_what_it_was_sampled_with() -> None:
    policy, record = handle(Scripted("xy", "z"), **TRAINED)
    await policy.chat([user("ab")])
    await policy.chat([user("ab"), assistant("xy"), user("cd")], sampling=Sampling(temperature=0.5))
    (trajectory,) = record.trajectories({"solver": 0.0})
    recorded = [turn.sampling for turn in trajectory.turns]
    assert [(each.temperature, each.max_new_tokens) for each in recorded if each] == [(1.0, 50), (0.5, 256)]
