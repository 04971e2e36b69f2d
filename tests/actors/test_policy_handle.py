from collections.abc import Sequence

import numpy as np

from astraflow.actors.rollout.generation import Call, Completion, merge_spans
from astraflow.actors.rollout.handle import RecordedPolicy, turn_seed
from astraflow.envs.base import ChatMessage
from astraflow.messages import Sampling, Task, VersionSpan


class Letters:
    """A tokenizer of single letters; an assistant's message is followed by a '.'."""

    eos_token_ids = (0,)
    vocab_size = 128

    def render(self, messages: Sequence[ChatMessage]) -> list[int]:
        return [ord(letter) for message in messages for letter in message.content]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(chr(token) for token in tokens)


class Scripted:
    """A requester that answers from a list and remembers what it was asked."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.calls: list[Call] = []

    async def generate(self, call: Call) -> Completion:
        self.calls.append(call)
        tokens = np.array([ord(letter) for letter in self.answers.pop(0)], np.int32)
        return Completion(
            tokens=tokens,
            logprobs=np.full(len(tokens), -0.5, np.float32),
            versions=(VersionSpan(version=3, start=0, end=len(tokens)),),
            finish_reason="stop",
            attempts=1,
        )


def handle(client: Scripted, **task: object) -> RecordedPolicy:
    fields = {"id": "i/s/0/0/1", "group_id": "i/s/0/0", "group_size": 2, "member": 1, "source": "s", "env": "e"}
    return RecordedPolicy(
        policy="solver",
        task=Task(**{**fields, "payload": {}, "seed": 7, **task}),
        sampling=Sampling(max_new_tokens=5),
        client=client,
        tokenizer=Letters(),
    )


async def test_a_follow_up_turn_appends_only_what_is_new() -> None:
    client = Scripted("xy", "z")
    policy = handle(client)
    await policy.chat([ChatMessage("user", "ab")])
    await policy.chat([ChatMessage("user", "ab"), ChatMessage("assistant", "xy"), ChatMessage("user", "cd")])

    (trajectory,) = policy.trajectories(1.5, {"part": 1.0})

    contexts = [bytes(turn.context_tokens.numpy().tolist()).decode() for turn in trajectory.turns]
    completions = [bytes(turn.completion_tokens.numpy().tolist()).decode() for turn in trajectory.turns]
    assert (contexts, completions) == (["ab", "cd"], ["xy", "z"])
    assert (trajectory.reward, trajectory.policy, trajectory.text) == (1.5, "solver", "xy\nz")


async def test_a_rewritten_history_is_a_new_trajectory() -> None:
    client = Scripted("xy", "z")
    policy = handle(client)
    await policy.chat([ChatMessage("user", "ab")])
    await policy.chat([ChatMessage("user", "ab"), ChatMessage("assistant", "x!"), ChatMessage("user", "cd")])

    first, second = policy.trajectories(0.0, {})

    assert [len(item.turns) for item in (first, second)] == [1, 1]
    assert bytes(second.turns[0].context_tokens.numpy().tolist()).decode() == "abx!cd"


async def test_calls_carry_the_tasks_seed_versions_and_ids() -> None:
    client = Scripted("x", "y")
    policy = handle(client, min_versions={"solver": 4}, attempt=2)
    await policy.chat([ChatMessage("user", "a")])
    await policy.generate(np.array([1, 2], np.int32), sampling=Sampling(max_new_tokens=1))

    assert [call.id for call in client.calls] == ["i/s/0/0/1@2#0", "i/s/0/0/1@2#1"]
    assert [call.seed for call in client.calls] == [turn_seed(7, "solver", 0), turn_seed(7, "solver", 1)]
    assert [call.min_version for call in client.calls] == [4, 4]
    assert [call.sampling.max_new_tokens for call in client.calls] == [5, 1]


def test_spans_of_the_same_version_are_joined() -> None:
    spans = [VersionSpan(version=v, start=s, end=e) for v, s, e in ((1, 0, 2), (1, 2, 3), (2, 3, 4), (1, 4, 5))]
    assert [(span.version, span.start, span.end) for span in merge_spans(spans)] == [(1, 0, 3), (2, 3, 4), (1, 4, 5)]
