"""From episodes to samples."""

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from astraflow.dataflow.samples import judge_episode, sample_of, trajectories_of
from astraflow.messages import Episode, Reason, Sampling, Trajectory, Turn, VersionSpan, array_of


def turn(context: list[int], completion: list[int], spans: list[tuple[int, int, int]], **changes: Any) -> Turn:
    whole = Turn(
        context_tokens=array_of(context, "i4"),
        completion_tokens=array_of(completion, "i4"),
        logprobs=array_of([-float(token) for token in completion], "f4"),
        versions=tuple(VersionSpan(version=v, start=s, end=e) for v, s, e in spans),
        finish_reason="stop",
    )
    return msgspec.structs.replace(whole, **changes)


def episode(*trajectories: Trajectory, reason: Reason = Reason.OK) -> Episode:
    return Episode(
        task_id="inc/train/0/3/1",
        attempt=0,
        group_id="inc/train/0/3",
        group_size=2,
        member=1,
        source="train",
        env="math",
        reason=reason,
        trajectories=trajectories,
    )


def one(*turns: Turn, reward: float = 1.0, policy: str = "solver") -> Trajectory:
    return Trajectory(policy=policy, turns=turns, reward=reward)


GOOD = turn([1, 2], [3], [(4, 0, 1)])


def test_turns_are_concatenated_and_spans_move_along() -> None:
    first = turn([1, 2, 3], [4, 5], [(7, 0, 1), (8, 1, 2)])
    second = turn([6], [7, 8, 9], [(8, 0, 3)])
    sample = sample_of(episode(one(first, second, reward=0.5)), 0, advantage=-2.0)
    assert sample.tokens.numpy().tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert sample.loss_mask.numpy().tolist() == [0, 0, 0, 1, 1, 0, 1, 1, 1]
    assert sample.logprobs.numpy().tolist() == [0, 0, 0, -4, -5, 0, -7, -8, -9]
    assert [(s.version, s.start, s.end) for s in sample.versions] == [(7, 3, 4), (8, 4, 5), (8, 6, 9)]
    assert (sample.id, sample.task_id, sample.group_id) == ("inc/train/0/3/1#0", "inc/train/0/3/1", "inc/train/0/3")
    assert (sample.advantage, sample.reward, sample.env) == (-2.0, 0.5, "math")


def test_each_token_keeps_the_temperature_that_it_was_sampled_at() -> None:
    hot, cold = Sampling(temperature=1.5), Sampling(temperature=0.5, max_new_tokens=7)
    turns = [
        turn([1, 2], [3, 4], [(1, 0, 2)], sampling=hot),
        turn([5], [6], [(1, 0, 1)], sampling=msgspec.structs.replace(hot, max_new_tokens=9)),
        turn([7], [8], [(1, 0, 1)], sampling=cold),
        turn([9], [], [], sampling=hot),
        turn([10], [11], [(1, 0, 1)]),
    ]
    sample = sample_of(episode(one(*turns)), 0, advantage=1.0)
    assert [(s.temperature, s.start, s.end) for s in sample.temperatures] == [(1.5, 2, 6), (0.5, 7, 8)]


@pytest.mark.parametrize("temperature", [math.nan, math.inf, -0.5])
def test_a_turn_of_an_impossible_temperature_is_malformed(temperature: float) -> None:
    strange = turn([1], [2], [(1, 0, 1)], sampling=Sampling(temperature=temperature))
    assert judge_episode(episode(one(strange)), "solver").fate == "malformed"


def test_a_turn_that_sampled_nothing_leaves_only_its_context() -> None:
    sample = sample_of(episode(one(GOOD, turn([5], [], []))), 0, advantage=1.0)
    assert sample.tokens.numpy().tolist() == [1, 2, 3, 5]
    assert sample.loss_mask.numpy().tolist() == [0, 0, 1, 0]
    assert len(sample.versions) == 1


def test_several_trajectories_of_a_policy_share_their_mean_reward() -> None:
    both = episode(one(GOOD, reward=1.0), one(GOOD, policy="verifier"), one(turn([1], [2], [(2, 0, 1)]), reward=0.0))
    judged = judge_episode(both, "solver")
    assert (judged.fate, judged.reward, judged.versions) == (None, 0.5, (2, 4))
    assert [at for at, _ in trajectories_of(both, "solver")] == [0, 2]


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, None, 1e308, "1"])
def test_a_reward_that_is_no_number_is_the_graders_fault(reward: Any) -> None:
    assert judge_episode(episode(one(GOOD, reward=reward)), "solver").fate == "grader"
    assert judge_episode(episode(one(GOOD), one(GOOD, reward=reward, policy="other")), "solver").fate is None


@pytest.mark.parametrize("reason", [Reason.INFRA, Reason.TIMEOUT, Reason.ENV, Reason.GRADER, Reason.CANCELLED])
def test_a_failure_is_never_trained_on(reason: Reason) -> None:
    assert judge_episode(episode(one(GOOD), reason=reason), "solver").fate == reason


@pytest.mark.parametrize("reason", [Reason.OK, Reason.POLICY, Reason.TRUNCATED])
def test_the_policys_own_faults_are_trained_on(reason: Reason) -> None:
    assert judge_episode(episode(one(GOOD), reason=reason), "solver").fate is None


def test_an_episode_without_sampled_tokens_is_no_sample() -> None:
    assert judge_episode(episode(one(turn([1, 2], [], []))), "solver").fate == "no-tokens"
    assert judge_episode(episode(), "solver").fate == "no-tokens"
    assert judge_episode(episode(one(GOOD, policy="verifier")), "solver").fate == "no-tokens"


@pytest.mark.parametrize(
    "bad",
    [
        turn([1], [2], [(0, 0, 1)], logprobs=array_of([math.nan], "f4")),
        turn([1], [2], [(0, 0, 1)], logprobs=array_of([-1.0, -1.0], "f4")),
        turn([1], [-2], [(0, 0, 1)]),
        turn([1], [2], []),
        turn([1], [2, 3], [(0, 0, 1)]),
        turn([1], [2, 3], [(0, 0, 1), (0, 0, 2)]),
        turn([1], [2], [(-1, 0, 1)]),
        turn([1], [2], [(0, 0, 1)], completion_tokens=array_of([2.0], "f4")),
        turn([1], [2], [(0, 0, 1)], context_tokens=array_of([[1]], "i4")),
        turn([1], [2], [(0, 0, 1)], completion_tokens=msgspec.structs.replace(array_of([2], "i4"), shape=(2,))),
    ],
)
def test_arrays_that_do_not_fit_together_are_malformed(bad: Turn) -> None:
    assert judge_episode(episode(one(GOOD, bad)), "solver").fate == "malformed"


def test_the_sample_is_as_it_was_recorded() -> None:
    tokens = np.arange(5, dtype="i4")
    sample = sample_of(episode(one(turn(tokens[:2].tolist(), tokens[2:].tolist(), [(0, 0, 3)]))), 0, advantage=0.0)
    assert sample.tokens == array_of(tokens, "i4")
