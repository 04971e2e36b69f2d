"""The tiny tasks and the toy environment: exact match, fixed rewards, told failures."""

import numpy as np
import pytest

from astraflow.envs.tiny_env import TinyEnv
from astraflow.envs.toy_env import ToyEnv
from astraflow.errors import ConfigError, EnvError
from tests.envs.scripted import ScriptedPolicy, reply, task


@pytest.mark.parametrize(
    ("text", "finish", "right"),
    [("17043", "stop", 1), ("17043", "length", 0), ("17043 ", "stop", 0), ("", "stop", 0), ("34071", "stop", 0)],
)
def test_a_reversal_must_be_exact_and_ended(text, finish, right):
    grade = TinyEnv(task="reverse").grade({"index": 0, "question": "34071=", "answer": "17043"}, reply(text, finish))
    assert (grade.reward, grade.correct) == (right, right)


def test_payloads_are_equal_for_equal_indices_and_hold_right_answers():
    for index in (0, 5, 1_000_003):
        payload = TinyEnv(task="reverse").task(index)
        assert payload == TinyEnv(task="reverse").task(index)
        assert payload["answer"] == payload["question"].removesuffix("=")[::-1]
        left, right = TinyEnv(task="add").task(index)["question"].removesuffix("=").split("+")
        assert TinyEnv(task="add").task(index)["answer"] == str(int(left) + int(right))
    assert TinyEnv(task="reverse", seed=1).task(0) != TinyEnv(task="reverse", seed=2).task(0)


def test_held_out_reversals_never_appear_in_training():
    env = TinyEnv(task="reverse")
    training = {env.task(i)["question"] for i in range(20_000)}
    assert not training & {env.task(1_000_000 + i)["question"] for i in range(5000)}


def test_an_unknown_tiny_task_is_a_config_error():
    with pytest.raises(ConfigError, match="did you mean 'reverse'"):
        TinyEnv(task="revers")


async def test_toy_rewards_are_a_function_of_index_and_member():
    env = ToyEnv(seed=3)
    seen = {}
    for member in (0, 1, 2, 0):
        outcome = await env.run(task(env.task(7), member=member), {"solver": ScriptedPolicy("x")})
        assert outcome.rewards["solver"] == seen.setdefault(member, env.reward(7, member))
    assert len({env.reward(7, member) for member in range(20)}) > 1
    assert ToyEnv(seed=3).reward(7, 1) == env.reward(7, 1)


def test_the_flat_share_of_toy_groups_has_no_variance():
    env = ToyEnv(flat_share=0.25)
    flat = [len({env.reward(index, member) for member in range(16)}) == 1 for index in range(400)]
    assert 60 <= sum(flat) <= 140


async def test_toy_failures_come_at_the_told_indices():
    env = ToyEnv(fail_every=3)
    failed = []
    for index in range(7):
        try:
            await env.run(task(env.task(index)), {"solver": ScriptedPolicy("x")})
        except EnvError:
            failed.append(index)
    assert failed == [0, 3, 6]


async def test_toy_turns_only_append_tokens():
    solver = ScriptedPolicy("x")
    await ToyEnv(turns=3).run(task({"index": 1}), {"solver": solver})
    assert len(solver.prompts) == 3
    for earlier, later in zip(solver.prompts, solver.prompts[1:], strict=False):
        grown = np.concatenate([earlier, solver.reply.tokens])
        assert np.array_equal(later[: len(grown)], grown)
        assert len(later) > len(grown)
        assert later.dtype == np.int32
        assert later.max() < 64


def test_toy_bounds():
    assert ToyEnv().size is None
    with pytest.raises(EnvError, match="5 tasks"):
        ToyEnv(size=5).task(5)
    with pytest.raises(ConfigError, match="turns=0"):
        ToyEnv(turns=0)
