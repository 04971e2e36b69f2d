"""The reasoning-gym environment: same questions everywhere, honest hold-out, scorers that can't be tricked."""

import subprocess
import sys
import time

import pytest

from astraflow.envs.reasoning_gym_env import HASH_ORDERED, UNSAFE_SCORERS, ReasoningGymEnv
from astraflow.errors import ConfigError, EnvError
from astraflow.messages import Reason
from astraflow.messages.ids import LEVEL_STRIDE
from tests.envs.scripted import ScriptedPolicy, reply, task

ONE_DIGIT = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def sums(**options) -> ReasoningGymEnv:
    defaults = {"dataset": "chain_sum", "knobs": ONE_DIGIT, "answer": "last-number", "end_bonus": 0.2}
    return ReasoningGymEnv(**(defaults | options))


def question(env: ReasoningGymEnv, index: int) -> str:
    return env.prompt(env.task(index))[-1].content


async def test_the_demo_prompt_and_its_reward():
    env = sums(system="Reply with a number only.", template="What is {expression}?")
    payload = env.task(1)
    assert [(m.role, m.content) for m in env.prompt(payload)] == [
        ("system", "Reply with a number only."),
        ("user", "What is 4 - 1?"),
    ]
    outcome = await env.run(task(payload), {"solver": ScriptedPolicy("4 - 1 = 3")})
    assert outcome.rewards == {"solver": 1.2}
    assert (outcome.correct, outcome.answer, outcome.reason) == (1.0, "3", Reason.OK)
    assert outcome.parts == {"answer": 1.0, "end": 0.2}


@pytest.mark.parametrize(
    ("text", "finish", "reward", "reason"),
    [
        ("3", "stop", 1.2, Reason.OK),
        ("3.0", "stop", 1.2, Reason.OK),
        ("it is 3", "length", 1.0, Reason.OK),
        ("4", "stop", 0.2, Reason.OK),
        ("13", "stop", 0.2, Reason.OK),  # the dataset's own scorer gives half credit for containing a 3
        ("", "stop", 0.2, Reason.POLICY),
        ("٣", "stop", 0.2, Reason.POLICY),
        ("nan", "stop", 0.2, Reason.POLICY),
        ("1e999", "stop", 0.2, Reason.OK),
        ("10^{10^{10}}", "stop", 0.2, Reason.OK),
        ("9" * 1_000_000, "length", 0.0, Reason.OK),
    ],
)
def test_grading_of_nasty_replies(text, finish, reward, reason):
    env = sums()
    grade = env.grade(env.task(1), reply(text, finish))
    assert grade.reward == pytest.approx(reward)
    assert grade.reason is reason


def test_modes_of_reading_the_answer():
    for mode, text in (
        ("tag", "hm <answer>3</answer>"),
        ("last-line", "hm\n3"),
        ("full", "3"),
    ):
        env = sums(answer=mode)
        assert env.grade(env.task(1), reply(text)).correct == 1
        assert env.grade(env.task(1), reply("3, I think so")).correct == 0


def test_dataset_scorer_gives_partial_credit_and_solved_does_not():
    given = reply("13")
    assert sums(scorer="dataset", end_bonus=0).grade({"index": 1, "entry": 1}, given).reward == 0.5
    assert sums(scorer="solved", end_bonus=0).grade({"index": 1, "entry": 1}, given).reward == 0
    assert sums(scorer="solved", end_bonus=0).grade({"index": 1, "entry": 1}, reply("3")).reward == 1


def test_a_scorer_that_raises_for_junk_is_the_policys_fault():
    env = ReasoningGymEnv(dataset="prime_factorization", answer="full", scorer="dataset")
    payload = env.task(0)
    grade = env.grade(payload, reply("banana"))
    assert (grade.reward, grade.reason) == (0.0, Reason.POLICY)
    assert env.grade(payload, reply(env.expected(payload))).reward == 1


@pytest.mark.parametrize("dataset", sorted(UNSAFE_SCORERS))
def test_scorers_that_run_eval_or_reward_junk_are_refused(dataset):
    with pytest.raises(ConfigError, match="refused"):
        ReasoningGymEnv(dataset=dataset, scorer="dataset")


def test_model_text_is_never_evaluated(tmp_path):
    env = ReasoningGymEnv(dataset="spiral_matrix", answer="full", scorer="exact")
    marker = tmp_path / "owned"
    env.grade(env.task(0), reply(f"[open({str(marker)!r}, 'w')]"))
    assert not marker.exists()


def test_equal_indices_give_equal_payloads_and_questions():
    first, second = sums(holdout=0.25), sums(holdout=0.25)
    indices = [0, 1, 2, 77, 1_000_000, 1_000_001]
    assert [first.task(i) for i in indices] == [second.task(i) for i in reversed(indices)][::-1]
    assert [question(first, i) for i in indices] == [question(second, i) for i in indices]


def test_held_out_questions_never_appear_in_training():
    env = sums(holdout=0.25)
    training = {question(env, i) for i in range(3000)}
    held_out = {question(env, 1_000_000 + i) for i in range(1000)}
    assert not training & held_out
    assert len(training | held_out) == 200  # ten by ten digits, plus and minus: all of them are used
    assert 30 <= len(held_out) <= 70


def test_without_holdout_small_spaces_overlap():
    env = sums()
    assert {question(env, i) for i in range(3000)} & {question(env, 1_000_000 + i) for i in range(100)}


def test_a_share_without_questions_is_an_env_error():
    env = sums(dataset="chain_sum", holdout=1e-9)
    with pytest.raises(EnvError, match="no held-out question"):
        env.task(1_000_000)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "chain_sums"}, "did you mean 'chain_sum'"),
        ({"knobs": {"min_term": 2}}, "did you mean 'min_terms'"),
        ({"knobs": {"min_terms": 0}}, "refuses knobs"),
        ({"knobs": {"seed": 1}}, "no knob 'seed'"),
        ({"answer": "last_number"}, "did you mean 'last-number'"),
        ({"scorer": "strict"}, "expected one of exact, dataset, solved"),
        ({"holdout": 1.0}, "holdout is 1.0"),
        ({"dataset": "composite", "knobs": {}}, "mix them by weight"),
        ({"dataset": "codeio", "knobs": {}}, "differs between processes"),
        ({"dataset": "rush_hour", "knobs": {}}, "has no expected answers"),
        ({"template": "What is {expresion}?"}, r"unknown placeholder \{expresion\}; did you mean 'expression'"),
        ({"template": "What is it?"}, "every prompt would be the same"),
        ({"system": "Compute {expression}."}, "nothing is filled in there"),
    ],
)
def test_mistakes_are_config_errors(options, message):
    with pytest.raises(ConfigError, match=message):
        sums(**options)


@pytest.mark.skipif(not sys.flags.hash_randomization, reason="needs randomised hashes")
def test_hash_ordered_datasets_are_refused_unless_hashes_are_fixed():
    for dataset in HASH_ORDERED:
        with pytest.raises(ConfigError, match="PYTHONHASHSEED=0"):
            ReasoningGymEnv(dataset=dataset)


@pytest.mark.slow
def test_questions_are_equal_in_two_processes():
    script = (
        "from astraflow.envs.reasoning_gym_env import ReasoningGymEnv as E\n"
        "for name in ('list_functions', 'gsm_symbolic', 'word_ladder', 'pool_matrix', 'knight_swap', 'acre'):\n"
        "    env = E(dataset=name, seed=5)\n"
        "    for i in (0, 1, 2, 12_345_678):\n"
        "        print(repr((env.prompt(env.task(i)), env.expected(env.task(i)))))\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", script],
            env={"PYTHONHASHSEED": "0"},
            capture_output=True,
            check=True,
        ).stdout
        for _ in range(2)
    }
    assert len(outputs) == 1


def test_grading_is_fast_enough_for_a_thousand_episodes_per_second():
    env = sums()
    payload, given = env.task(1), reply("3")
    env.grade(payload, given)
    start = time.perf_counter()
    for _ in range(200):
        env.grade(payload, given)
    assert (time.perf_counter() - start) / 200 < 0.001


def test_levels_are_those_of_the_datasets_own_curriculum():
    env = ReasoningGymEnv(dataset="chain_sum", levels=3, holdout=0.2)
    terms = {}
    for level in range(3):
        payload = env.task(level * LEVEL_STRIDE + 5)
        assert payload.get("level", 0) == level
        assert env.grade(payload, reply(f"<answer>{env.expected(payload)}</answer>")).reward == 1.0
        questions = [env.prompt(env.task(level * LEVEL_STRIDE + k))[-1].content for k in range(30)]
        terms[level] = max(text.count(" + ") + text.count(" - ") for text in questions)
    assert terms == {0: 1, 1: 2, 2: 3}
    with pytest.raises(EnvError, match="level 3, but there are 3"):
        env.task(3 * LEVEL_STRIDE)
    with pytest.raises(ConfigError, match="no curriculum of 'acre'"):
        ReasoningGymEnv(dataset="acre", levels=2)
