"""Question files as they are published: formats, columns, messages, several answers; what is wrong is named."""

import gzip
import io
import json
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from astraflow.envs.math_env import MathEnv
from astraflow.errors import ConfigError

ROWS = [{"question": "1+1?", "answer": "2"}, {"question": "2+2?", "answer": "4"}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


def parquet(rows) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), file)
    return file.getvalue()


def asked(path, **options) -> list[tuple[str, str]]:
    """Questions and answers of a file."""
    env = MathEnv(path=[str(each) for each in path] if isinstance(path, list) else str(path), **options)
    return [(env.task(i)["question"], env.task(i)["answer"]) for i in range(env.size)]


TWO = [("1+1?", "2"), ("2+2?", "4")]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.jsonl", LINES.encode()),
        ("a.JSONL", LINES.encode()),
        ("a.ndjson", LINES.replace("\n", "\r\n").encode()),
        ("a.jsonl", b"\xef\xbb\xbf" + LINES.encode()),
        ("a.jsonl", LINES.encode("utf-16")),  # as some editors save it
        ("a.jsonl", b"\n\n  \n" + LINES.replace("\n", "\n\n").encode()),
        ("a.jsonl", LINES.encode().rstrip()),
        ("a.json", LINES.encode()),
        ("a.json", json.dumps(ROWS).encode()),
        ("a.json", b"\xef\xbb\xbf \n" + json.dumps(ROWS, indent=2).replace("\n", "\r\n").encode()),
        ("a.jsonl", json.dumps(ROWS).encode()),
        ("a.json", json.dumps({"version": "1.0", "data": ROWS}).encode()),
        ("a.json", json.dumps({"data": ROWS, "authors": ["x"]}, indent=1).encode()),
        ("a.json", json.dumps({"question": ["1+1?", "2+2?"], "answer": [2, 4]}).encode()),
        ("a", LINES.encode()),
        ("a.csv", b"question,answer\r\n1+1?,2\r\n2+2?,4\r\n"),
        ("a.csv", "\ufeffanswer,question\n2,1+1?\n4,2+2?\n".encode()),
        ("a.tsv", b"question\tanswer\n1+1?\t2\n2+2?\t4\n"),
        ("a.jsonl.gz", gzip.compress(LINES.encode(), mtime=0)),
        ("a.json.GZ", gzip.compress(json.dumps(ROWS).encode(), mtime=0)),
        (
            "a.jsonl.gz",
            gzip.compress(LINES[: LINES.index("\n") + 1].encode(), mtime=0)
            + gzip.compress(LINES.splitlines()[1].encode(), mtime=0),
        ),
        ("a.jsonl.zst", zstandard.compress(LINES.encode())),
        ("a.jsonl", zstandard.compress(LINES.encode())),  # packed without saying so
        ("a.csv.zst", zstandard.compress(b"question,answer\n1+1?,2\n2+2?,4\n")),
        ("A.PARQUET", parquet(ROWS)),
        ("a", parquet(ROWS)),
        ("a.parquet", parquet([{"question": row["question"], "answer": float(row["answer"])} for row in ROWS])),
    ],
)
def test_every_shape_of_file_is_read(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    assert asked(tmp_path / name) == TWO


def test_several_files_shards_patterns_folders_and_splits(tmp_path):
    for number, row in enumerate(ROWS):
        (tmp_path / f"train-{number:05d}-of-00002.parquet").write_bytes(parquet([row]))
    (tmp_path / "test.jsonl").write_text('{"question": "3+3?", "answer": 6}\n')
    assert asked(tmp_path / "train-*.parquet") == TWO
    assert asked(tmp_path / "*-of-*") == TWO
    assert asked(tmp_path / "train") == TWO
    assert asked([tmp_path / "test.jsonl", tmp_path / "train"]) == [("3+3?", "6"), *TWO]
    with pytest.raises(ConfigError, match="aren't of one set"):
        asked(tmp_path)
    (tmp_path / "test.jsonl").unlink()
    assert asked(tmp_path) == TWO
    (tmp_path / "train-00001-of-00002.parquet").unlink()
    with pytest.raises(ConfigError, match="1 of 2 files are missing, the first is 1"):
        asked(tmp_path / "train")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="empty has no file of questions"):
        asked(tmp_path / "empty")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("train.json", r"train\.json doesn't exist .*did you mean 'train\.jsonl'"),
        ("nowhere/at/all.jsonl", "doesn't exist"),
        ("nowhere/at/all", "doesn't exist"),
        ("test", "doesn't exist: folder .* has no split 'test'; known: train.jsonl"),
        ("*.csv", r"has no file \*\.csv"),
        ("a**b.jsonl", "can't be looked for"),
        ("x" * 300 + ".jsonl", "can't be looked for"),
        ("https://huggingface.co/datasets/a/b/resolve/main/x.jsonl", "download it and name the file"),
    ],
)
def test_what_is_not_there_is_said_with_the_nearest(tmp_path, monkeypatch, path, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.jsonl").write_text(LINES)
    with pytest.raises(ConfigError, match=message):
        asked(path)


def test_hidden_folders_of_a_download_are_not_looked_into(tmp_path):
    for name in ("main/train.jsonl", ".cache/huggingface/download/main/train.jsonl", ".git/train.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(LINES)
    assert asked(tmp_path) == asked(tmp_path / "train") == asked(tmp_path / "main/train") == TWO


def test_a_home_folder_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.jsonl").write_text(LINES)
    assert asked("~/a.jsonl") == asked("~/*.jsonl") == TWO


def one(tmp_path, row, **options):
    """The task of a file with one row."""
    (tmp_path / "one.json").write_text(json.dumps([row]))
    return MathEnv(path=str(tmp_path / "one.json"), **options).task(0)


@pytest.mark.parametrize(
    ("row", "key"),
    [
        ({"question": "?", "reward_model": {"ground_truth": "5"}}, "reward_model.ground_truth"),
        ({"question": "?", "reward_model": '{"ground_truth": "5"}'}, "reward_model.ground_truth"),  # JSON in a text
        ({"question": "?", "reward_model.ground_truth": "5"}, "reward_model.ground_truth"),
        ({"question": "?", "a": [{"b": "4"}, {"b": "5"}]}, "a.1.b"),
        ({"question": "?", "solution": "5"}, "final_answer|solution"),
        ({"question": "?", "final_answer": None, "solution": "5"}, "final_answer|solution"),
    ],
)
def test_keys_reach_into_rows(tmp_path, row, key):
    assert one(tmp_path, row, answer_key=key)["answer"] == "5"


@pytest.mark.parametrize(
    ("value", "answers"),
    [
        ("5", ["5"]),
        (5, ["5"]),
        (-5.0, ["-5"]),
        (0.1, ["0.1"]),
        (1e-7, ["0.0000001"]),
        (1e22, ["1E+22"]),
        (True, ["True"]),
        (["5", 6, 7.5], ["5", "6", "7.5"]),
        ('["5", "6"]', ["5", "6"]),
        ("[5, 6]", ["[5, 6]"]),  # an interval
        ("It is so.\n#### 1,200", ["1,200"]),
        ("so $\\boxed{\\frac{1}{2}}$.", ["\\frac{1}{2}"]),
        ("\\boxed{1} then \\boxed{\\text{C}}", ["\\text{C}"]),
        ("$\\frac{1}{2}$", ["\\frac{1}{2}"]),
        ("$1,000", ["$1,000"]),
        ("１２", ["１２"]),
    ],
)
def test_answers(tmp_path, value, answers):
    payload = one(tmp_path, {"question": "?", "answer": value})
    assert [payload["answer"], *payload.get("aliases", ())] == answers


def test_decimals_are_kept_as_they_are_written(tmp_path):
    (tmp_path / "a.json").write_text('[{"question": "?", "answer": 12345678901234567890.125}]')
    assert asked(tmp_path / "a.json") == [("?", "12345678901234567890.125")]
    (tmp_path / "a.parquet").write_bytes(parquet([{"question": "?", "answer": Decimal("72.00")}]))
    assert asked(tmp_path / "a.parquet") == [("?", "72")]


@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        None,
        "x #### ",
        "\\boxed{}",
        "so \\boxed{5",
        "NaN",
        "nan",
        "None",
        "null",
        "N/A",
        "$$",
        "...",
        "\\text{}",
        "\\frac{1}{",
        "\\frac{1}",
        "{1,2",
        "1}",
        "\\left(1",
        "x=",
        "\\{1,2",
        "5$",
        "\\begin{pmatrix}1",
        [],
        ["5", ""],
        {},
        [["5"]],
        {"a": "5"},
        "[]",
        float("nan"),
        float("inf"),
        "$",
        "\\",
        "\\boxed{",
        "#### ####",
    ],
)
def test_what_is_no_answer_is_refused_with_its_row(tmp_path, value):
    (tmp_path / "a.jsonl").write_text(LINES + json.dumps({"question": "?", "answer": value}) + "\n")
    with pytest.raises(ConfigError, match=r"a\.jsonl:3: answer .*bad_rows = 'skip' leaves such rows out"):
        asked(tmp_path / "a.jsonl")
    assert asked(tmp_path / "a.jsonl", bad_rows="skip") == TWO


@pytest.mark.parametrize(
    "value",
    [
        "\\text{None}",
        "none",
        "(1,2]",
        "[0,\\infty)",
        "\\{1,2\\}",
        "{1,2}",
        "\\emptyset",
        "\\left\\{x\\right.",
        ">",
        "50\\%",
        "\\frac{\\sqrt{\\frac{\\sqrt{2}}{3}}}{5}",
        "\\frac12",
        "\\dfrac1{2}",
        "\\$5",
        "-\\frac{a}{b}",
        "北京",
        "C",
        "1 1/2",
        "\\begin{pmatrix}1\\\\2\\end{pmatrix}",
        "x\\in[0,1)",
        "A+",
        "undefined",
        "\\{\\}",
        "0",
    ],
)
def test_what_is_an_answer_is_kept(tmp_path, value):
    assert one(tmp_path, {"question": "?", "answer": value})["answer"] == value


def test_messages_keep_their_system_prompt_and_earlier_turns(tmp_path):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "2+2?"},
    ]
    (tmp_path / "a.parquet").write_bytes(parquet([{"prompt": messages, "answer": "4"}]))
    env = MathEnv(path=str(tmp_path / "a.parquet"), question_key="prompt", template="{question} Now.")
    prompt = [(message.role, message.content) for message in env.prompt(env.task(0))]
    assert prompt == [*((m["role"], m["content"]) for m in messages[:3]), ("user", "2+2? Now.")]
    own = MathEnv(path=str(tmp_path / "a.parquet"), question_key="prompt", system="Think.")
    assert [(m.role, m.content) for m in own.prompt(own.task(0))][:2] == [("system", "Think."), ("user", "1+1?")]


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "It is 2."}],
        [{"from": "human", "value": "1+1?"}, {"from": "gpt", "value": "It is 2."}],
        [{"role": "user", "content": [{"type": "text", "text": "1+1?"}]}],
        json.dumps([{"role": "user", "content": "1+1?"}]),
        "1+1?",
    ],
)
def test_dialects_of_conversations(tmp_path, messages):
    payload = one(tmp_path, {"prompt": messages, "answer": "2"}, question_key="prompt")
    assert payload == {"index": 0, "question": "1+1?", "answer": "2"}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([{"role": "assistant", "content": "hi"}], "without a message of the user"),
        ([{"role": "user"}], "expected role and content"),
        ([{"role": "critic", "content": "?"}], "expected system, user, assistant or tool"),
        ([{"role": "user", "content": [{"type": "image"}]}], "expected role and content"),
        ({"text": "1+1?", "id": 5}, r"is a table; set args.question_key to one of: prompt.text, prompt.id"),
        (["1+1?"], "expected text, or a list of messages"),
        ([], "expected text, or a list of messages"),
    ],
)
def test_what_is_no_question_is_named(tmp_path, value, message):
    with pytest.raises(ConfigError, match=rf"one\.json:1: prompt .*{message}"):
        one(tmp_path, {"prompt": value, "answer": "2"}, question_key="prompt")


def test_patterns_take_off_what_surrounds_a_question_or_an_answer(tmp_path):
    row = {"question": "1+1? Let's think.", "answer": "Answer: 2 apples"}
    payload = one(tmp_path, row, question_strip=r"\s*Let's think\.$", answer_strip="^Answer: | apples$")
    assert payload == {"index": 0, "question": "1+1?", "answer": "2"}
    with pytest.raises(ConfigError, match=r"answer is .*nothing is left"):
        one(tmp_path, row, answer_strip=".*")
    with pytest.raises(ConfigError, match="question is"):
        one(tmp_path, row, question_strip=".*")
    with pytest.raises(ConfigError, match=r"question_strip is '\(', which is no regular expression"):
        MathEnv(path="x.jsonl", question_strip="(")


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ({"problem": "?", "answer": "1"}, {}, "no key 'question'; did you mean 'problem'.*set args.question_key to"),
        ({"question": "?", "final_answer": "1"}, {}, "'answer'; did you mean 'final_answer'.*set args.answer_key"),
        (
            {"q": "?", "reward_model": {"ground_truth": "1", "style": "x"}},
            {"question_key": "q"},
            "did you mean 'reward_model.ground_truth'.*to one of: q, reward_model.ground_truth, reward_model.style",
        ),
        ({"q": "?"}, {}, "set args.question_key to one of: q"),
    ],
)
@pytest.mark.parametrize("form", ["lines", "parquet"])
def test_a_wrong_column_names_the_key_the_columns_and_the_nearest(tmp_path, form, row, options, message):
    path = tmp_path / ("a.parquet" if form == "parquet" else "a.jsonl")
    path.write_bytes(parquet([row]) if form == "parquet" else json.dumps(row).encode())
    with pytest.raises(
        ConfigError, match=message.replace("key", "(key|column)", 1) if "no key" in message else message
    ):
        asked(path, **options)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.json", b'[\n{"question": "?", "answer": "1"},\n{"question": \n]', r"a\.json:3: not JSON"),
        ("a.json", b'[{"question": "?", "answer": "1"}\n{"question": "?"}]', r"a\.json:2: not JSON: a comma or \]"),
        ("a.json", b'[{"question": "?", "answer": "1"},]', r"a\.json:1: not JSON"),
        ("a.json", b'[{"question": "?", "answer": "1"}', r"a\.json:1: not JSON: a comma"),
        ("a.json", b'[{"question": "?", "answer": "1"}] []', r"behind its array comes"),
        ("a.json", b'[{"question": "?",\n"answer": "1"},\n\n{"question": "?"}]', r"a\.json:4: has no key 'answer'"),
        ("a.json", b'{"train": [{"question": "?"}], "test": [{"question": "?"}]}', r"several lists \(train, test\)"),
        ("a.json", b"{", r"a\.json:1: not JSON"),
        ("a.json", b"", "holds no questions"),
        ("a.json", b"[]", "holds no questions"),
        ("a.jsonl", b"<!DOCTYPE html>", "looks like a web page"),
        ("a.parquet", b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        ("a.jsonl", b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        ("a.jsonl.gz", gzip.compress(LINES.encode(), mtime=0)[:-12], "can't be read"),
        ("a.jsonl.gz", b"\x1f\x8bnonsense", "can't be read"),
        ("a.jsonl.zst", zstandard.compress(LINES.encode() * 99)[:-5], "can't be read"),
        ("a.jsonl", LINES.encode() + b'{"question": "\xe9"', r"a\.jsonl:3: not UTF-8"),
        ("a.csv", b"question,answer\n1,2,3\n", r"a\.csv:2: more cells than columns"),
        ("a.csv", b'question,answer\n"1,2\n', "not CSV"),
        ("a.csv", b"question,answer\n1\n", r"a\.csv:2: answer is None"),
        ("a.jsonl", b"{}", "none, the row is empty"),
        ("a.jsonl", LINES.encode() + b'"text"\n', r"a\.jsonl:3: holds str"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_its_line(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigError, match=message):
        asked(tmp_path / name)


def test_a_very_long_line_and_many_of_them_are_read(tmp_path):
    rows = [{"question": "x" * 3_000_000, "answer": "1"}, *({"question": str(i), "answer": i} for i in range(20_000))]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    env = MathEnv(path=str(tmp_path / "a.jsonl"))
    assert env.size == 20_001
    assert len(env.task(0)["question"]) == 3_000_000


def test_only_the_columns_that_are_wanted_are_read_of_parquet(tmp_path):
    file = tmp_path / "a.parquet"
    file.write_bytes(parquet([{"q.x": "?", "a": {"b": 2, "c": [1, 2]}, "image": b"\x00" * 9}]))
    assert asked(file, question_key="q.x", answer_key="a.b") == [("?", "2")]
    assert asked(file, question_key="q.x", answer_key="a.c.1") == [("?", "2")]
    with pytest.raises(
        ConfigError, match=r"no column 'a\.d'; did you mean 'a\.[bc]'.*to one of: q\.x, a\.b, a\.c, image"
    ):
        asked(file, question_key="q.x", answer_key="a.d")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs args.path"),
        ({"path": []}, "needs args.path"),
        ({"path": ["a.jsonl", 5]}, "path is"),
        ({"dataset": "deepscale"}, "did you mean 'deepscaler'"),
        ({"path": "hf://datasets/org/name"}, "names no files of a dataset"),
        ({"path": "a", "answer_key": ""}, "answer_key is ''"),
        ({"path": "a", "bad_rows": "drop"}, "expected one of refuse, skip"),
        ({"path": "a", "template": "{problem}"}, r"unknown placeholder \{problem\}"),
        ({"path": "a", "template": "Solve it."}, r"without \{question\}"),
        ({"path": "a", "system": "Solve {question}"}, "nothing is filled in there"),
    ],
)
def test_mistakes_in_arguments_are_told_without_the_file(options, message):
    with pytest.raises(ConfigError, match=message):
        MathEnv(**options)
