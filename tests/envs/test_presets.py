"""Published sets by one word, each read from a handmade file with the columns, nesting and types of the real one."""

import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from astraflow.envs.math_env import MathEnv
from astraflow.envs.presets import PRESETS, source, table
from astraflow.errors import ConfigError
from astraflow.models.hub_datasets import parsed

PAGE = Path(__file__).parents[2] / "docs/questions.md"

DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\nFind x if 2x = 34.\n\nRemember to put "
    'your answer on its own line after "Answer:".'
)


def verl(prompt: str, answer: str) -> dict:
    return {
        "data_source": "math_dapo",
        "prompt": [{"content": prompt, "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": "9a9b6eb4"},
    }


BOXED = "Find x if 2x = 34. Let's think step by step and output the final answer within \\boxed{}."
GSM8K = {"question": "Lea walks 4 km a day. A week?", "answer": "4*7 = <<4*7=28>>28\n#### 28"}
# File as the repository has it, a row, and the question and answer that come out.
SHAPES = {
    "deepscaler": (
        "deepscaler.json",
        {"problem": "What is $\\frac12+1$?", "answer": "\\frac{3}{2}", "solution": "Add. $\\boxed{\\frac{3}{2}}$"},
        ("What is $\\frac12+1$?", "\\frac{3}{2}"),
    ),
    "dapo-filter": ("train.parquet", verl(BOXED, "17"), ("Find x if 2x = 34.", "17")),
    "dapo-math-17k": ("data/dapo-math-17k.parquet", verl(DAPO, "17"), ("Find x if 2x = 34.", "17")),
    "gsm8k": ("main/train-00000-of-00001.parquet", GSM8K, (GSM8K["question"], "28")),
    "gsm8k-test": ("main/test-00000-of-00001.parquet", GSM8K, (GSM8K["question"], "28")),
    "aime24": (
        "data/train-00000-of-00001.parquet",
        {"id": 60, "problem": "Find it.", "solution": "…", "answer": "204", "url": "https://…", "year": "2024"},
        ("Find it.", "204"),
    ),
    "aime25": ("test.jsonl", {"problem": "Find it.", "answer": "70", "id": "0"}, ("Find it.", "70")),
    "amc": ("amc12-2024.jsonl", {"problem": "Find it.", "answer": "-\\frac{1}{2}"}, ("Find it.", "-\\frac{1}{2}")),
    "math-500": (
        "test.jsonl",
        {"problem": "Polar?", "solution": "$\\boxed{3}$", "answer": "\\left( 3, \\frac{\\pi}{2} \\right)", "level": 2},
        ("Polar?", "\\left( 3, \\frac{\\pi}{2} \\right)"),
    ),
    "minerva": ("test.jsonl", {"question": "Energy?", "answer": "4.5e33"}, ("Energy?", "4.5e33")),
    "olympiad": ("test.jsonl", {"problem": "All n?", "solution": "So $\\boxed{2,3}$."}, ("All n?", "2,3")),
}


def write(file, row):
    """A file of this name with one row."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".parquet":
        stream = io.BytesIO()
        pq.write_table(pa.Table.from_pylist([row]), stream)
        file.write_bytes(stream.getvalue())
    else:
        text = json.dumps([row]) if file.suffix == ".json" else json.dumps(row) + "\n"
        file.write_text(text)


@pytest.mark.parametrize("name", PRESETS)
def test_each_preset_reads_a_copy_of_its_repository(tmp_path, name):
    file, row, expected = SHAPES[name]
    write(tmp_path / file, row)
    for path in (tmp_path, tmp_path / file):  # the folder that was copied, and the file itself
        env = MathEnv(dataset=name, path=str(path))
        assert env.size == 1
        assert (env.task(0)["question"], env.task(0)["answer"]) == expected
    assert parsed(PRESETS[name].url)


def test_a_preset_finds_its_split_beside_others(tmp_path):
    write(tmp_path / "main/train-00000-of-00001.parquet", GSM8K)
    write(tmp_path / "main/test-00000-of-00001.parquet", {"question": "Test?", "answer": "#### 1"})
    write(tmp_path / "socratic/test-00000-of-00001.parquet", {"question": "Other?", "answer": "#### 2"})
    assert MathEnv(dataset="gsm8k-test", path=str(tmp_path)).task(0)["question"] == "Test?"


def test_olympiad_is_read_in_its_other_shape_too(tmp_path):
    write(tmp_path / "test.jsonl", {"question": "All n?", "final_answer": ["2", "3"], "solution": ["Try them."]})
    payload = MathEnv(dataset="olympiad", path=str(tmp_path)).task(0)
    assert (payload["answer"], payload["aliases"]) == ("2", ["3"])


def test_every_key_of_a_preset_can_be_given():
    meant = source(dataset="dapo-filter")
    assert meant.paths == ("hf://datasets/aaabiao/dapo_filter/train",)
    assert meant.question_strip
    own = source(
        dataset="dapo-filter", path="x", question_key="q", answer_key="a", question_strip="", answer_strip="kg$"
    )
    assert (own.paths, own.question_key, own.answer_key) == (("x",), "q", "a")
    assert (own.question_strip, own.answer_strip) == ("", "kg$")


def test_an_unknown_preset_is_named_with_the_nearest():
    with pytest.raises(ConfigError, match=r"expected one of deepscaler, .*did you mean 'math-500'"):
        source(dataset="math500")


def test_the_page_on_questions_has_this_table():
    assert table() in PAGE.read_text(encoding="utf-8")
