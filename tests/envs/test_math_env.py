"""The math environment over files: what is read, what is refused, what is held out."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from astraflow.envs.math_env import MathEnv
from astraflow.errors import ConfigError, EnvError
from astraflow.messages import Reason
from tests.envs.scripted import ScriptedPolicy, task


def write_jsonl(path, rows):
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return str(path)


@pytest.fixture
def hundred(tmp_path):
    rows = [{"question": f"What is {i} + {i}?", "answer": f"Add. #### {2 * i}"} for i in range(100)]
    return write_jsonl(tmp_path / "questions.jsonl", rows)


async def test_a_right_and_a_wrong_reply(hundred):
    env = MathEnv(path=hundred, system="Think.", end_bonus=0.1)
    payload = env.task(21)
    assert payload == {"index": 21, "question": "What is 21 + 21?", "answer": "42"}
    solver = ScriptedPolicy("so \\boxed{42}")
    right = await env.run(task(payload), {"solver": solver})
    assert solver.asked[0][-1].content == "What is 21 + 21?\nPut the final answer into \\boxed{}."
    assert (right.rewards, right.correct, right.reason) == ({"solver": 1.1}, 1.0, Reason.OK)
    wrong = await env.run(task(payload), {"solver": ScriptedPolicy("\\boxed{43}", "length")})
    assert (wrong.rewards, wrong.correct, wrong.reason) == ({"solver": 0.0}, 0.0, Reason.TRUNCATED)
    await env.close()


async def test_a_hung_verifier_is_reason_grader_and_no_reward(hundred):
    env = MathEnv(path=hundred, verifiers=1, deadline_s=0.5)
    outcome = await env.run(task(env.task(0)), {"solver": ScriptedPolicy("$10^{10^{10}}$")})
    assert (outcome.reason, outcome.rewards) == (Reason.GRADER, {})
    await env.close()


def test_equal_questions_are_one_task_so_index_ranges_hold_out_honestly(tmp_path):
    rows = [{"question": f"What is {i % 7}?", "answer": i} for i in range(20)]
    env = MathEnv(path=write_jsonl(tmp_path / "q.jsonl", rows))
    assert env.size == 7
    assert [env.task(i)["answer"] for i in range(7)] == ["0", "1", "2", "3", "4", "5", "6"]
    for index in (-1, 7, 1_000_000):
        with pytest.raises(EnvError, match="7 different questions"):
            env.task(index)


async def test_any_of_several_answers_is_right(tmp_path):
    env = MathEnv(path=write_jsonl(tmp_path / "q.jsonl", [{"question": "?", "answer": ["New York", "NYC", 7]}]))
    payload = env.task(0)
    assert payload == {"index": 0, "question": "?", "answer": "New York", "aliases": ["NYC", "7"]}
    assert env.expected(payload) == "New York or NYC or 7"
    for text, right in (("\\boxed{NYC}", 1.0), ("\\boxed{new york}", 1.0), ("7", 1.0), ("\\boxed{8}", 0.0), ("", 0.0)):
        outcome = await env.run(task(payload), {"solver": ScriptedPolicy(text)})
        assert (outcome.correct, outcome.reason) == (right, Reason.OK), text
    await env.close()


async def test_a_task_without_an_answer_is_reason_grader_and_never_paid(tmp_path):
    env = MathEnv(path=write_jsonl(tmp_path / "q.jsonl", [{"question": "?", "answer": "1"}]), end_bonus=0.1)
    for text in ("", "\\boxed{}", "\\boxed{", "1"):
        outcome = await env.run(task({"index": 0, "question": "?", "answer": ""}), {"solver": ScriptedPolicy(text)})
        assert (outcome.rewards, outcome.reason) == ({}, Reason.GRADER)
    await env.close()


def test_parquet_is_read(tmp_path):
    path = tmp_path / "q.parquet"
    pq.write_table(pa.table({"problem": ["1+1", "2+2"], "solution": [2, 4]}), path)
    env = MathEnv(path=str(path), question_key="problem", answer_key="solution")
    assert env.size == 2
    assert env.task(1) == {"index": 1, "question": "2+2", "answer": "4"}
    with pytest.raises(ConfigError, match=r"no column 'problems'; did you mean 'problem'"):
        _ = MathEnv(path=str(path), question_key="problems", answer_key="solution").size


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"question": "1", "answer": "1"}\n{"question": ', r"bad.jsonl:2: not JSON"),
        ('{"question": "1", "answer": "1"}\n\n{"question": "1"}', r"bad.jsonl:3: has no key 'answer'"),
        ('{"question": "1", "answers": "1"}', r"bad.jsonl:1: has no key 'answer'; did you mean 'answers'"),
        ("[1]", r"bad.jsonl:1: holds list"),
        ('{"question": "1", "answer": null}', r"bad.jsonl:1: answer is None"),
        ('{"question": "1", "answer": []}', r"bad.jsonl:1: answer is \[\]"),
        ('{"question": "1", "answer": ["1", null]}', r"bad.jsonl:1: answer is None"),
        ('{"question": "1", "answer": [["1"]]}', r"bad.jsonl:1: answer is \['1'\]"),
        ('{"question": " ", "answer": "1"}', r"bad.jsonl:1: question is ' '"),
        ("[" * 100_000, r"bad.jsonl:1: not JSON"),
        ("\n\n", r"holds no questions"),
    ],
)
def test_bad_files_are_config_errors_with_file_and_line(tmp_path, text, message):
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        _ = MathEnv(path=str(path)).size


def test_missing_binary_and_fake_parquet_files_are_config_errors(tmp_path):
    with pytest.raises(ConfigError, match="doesn't exist"):
        _ = MathEnv(path=str(tmp_path / "nowhere.jsonl")).size
    (tmp_path / "binary.jsonl").write_bytes(b'{"question": "1", "answer": "1"}\n\xff\xfe\x00')
    with pytest.raises(ConfigError, match="not UTF-8"):
        _ = MathEnv(path=str(tmp_path / "binary.jsonl")).size
    (tmp_path / "fake.parquet").write_text("{}")
    with pytest.raises(ConfigError, match="can't be read as parquet"):
        _ = MathEnv(path=str(tmp_path / "fake.parquet")).size


def test_half_a_surrogate_pair_in_a_question_is_replaced_because_no_message_can_hold_it(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text('{"question": "What is \\ud800 1?", "answer": "\\udfff1"}\n')
    assert MathEnv(path=str(path)).task(0) == {"index": 0, "question": "What is \ufffd 1?", "answer": "\ufffd1"}
