"""Which files of a listing a file, a pattern or a split means."""

import pytest

from astraflow.errors import ConfigError
from astraflow.models.dataset_files import chosen, format_of, matching

GSM8K = [
    "README.md",
    "main/test-00000-of-00001.parquet",
    "main/train-00000-of-00001.parquet",
    "socratic/test-00000-of-00001.parquet",
    "socratic/train-00000-of-00001.parquet",
]
SHARDS = [f"data/train-{i:05d}-of-00003.parquet" for i in range(3)]


@pytest.mark.parametrize(
    ("wanted", "names", "found"),
    [
        ("main/train", GSM8K, ["main/train-00000-of-00001.parquet"]),
        ("main/train-00000-of-00001.parquet", GSM8K, ["main/train-00000-of-00001.parquet"]),
        ("main/*.parquet", GSM8K, GSM8K[1:3]),
        ("**/train-*", GSM8K, [GSM8K[2], GSM8K[4]]),
        ("train", [*SHARDS, "data/test-00000-of-00001.parquet"], SHARDS),
        ("data/train", SHARDS, SHARDS),
        ("test", ["test.jsonl", "README.md", ".gitattributes"], ["test.jsonl"]),
        ("test", ["test.jsonl", "test_easy.jsonl"], ["test.jsonl"]),
        ("test_easy", ["test.jsonl", "test_easy.jsonl"], ["test_easy.jsonl"]),
        ("test", ["amc12-test-2024.jsonl", "train.jsonl"], ["amc12-test-2024.jsonl"]),
        ("validation", ["data/val.json.gz", "data/train.json.gz"], ["data/val.json.gz"]),
        (
            "train",
            ["default/train/0000.parquet", "default/train/0001.parquet", "default/test/0000.parquet"],
            ["default/train/0000.parquet", "default/train/0001.parquet"],
        ),
        ("train", ["TRAIN.PARQUET"], ["TRAIN.PARQUET"]),
        ("", ["deepscaler.json", "README.md", "dataset_infos.json"], ["deepscaler.json"]),
        ("a[0-9].csv", ["a1.csv", "a2.csv", "ab.csv"], ["a1.csv", "a2.csv"]),
    ],
)
def test_what_a_name_means(wanted, names, found):
    assert chosen(wanted, names, where="here") == found


@pytest.mark.parametrize(
    ("wanted", "names", "message"),
    [
        ("train", GSM8K, r"split 'train' of here could be main/train.*socratic/train.*aren't of one set"),
        ("", GSM8K, "aren't of one set"),
        ("main", GSM8K, "aren't of one set"),
        ("train", ["train.jsonl", "train.parquet"], "aren't of one set"),
        ("train", ["trainer.jsonl"], "no split 'train'; did you mean 'trainer.jsonl'"),
        ("trian.jsonl", ["train.jsonl"], "no file trian.jsonl; did you mean 'train.jsonl'"),
        ("*.csv", ["train.jsonl"], r"no file \*.csv"),
        ("train", SHARDS[:2], "1 of 3 files are missing, the first is 2"),
        ("data/*.parquet", SHARDS[1:], "1 of 3 files are missing, the first is 0"),
        ("", ["aime24.jsonl", "aime25.jsonl"], "aren't of one set"),
        ("train", [], "no split 'train'"),
    ],
)
def test_what_is_not_there_half_there_or_two_sets_is_refused(wanted, names, message):
    with pytest.raises(ConfigError, match=message):
        chosen(wanted, names, where="here")


def test_a_star_stays_within_a_folder_and_two_do_not():
    names = ["a.jsonl", "x/b.jsonl", "x/y/c.jsonl"]
    assert matching("*.jsonl", names) == ["a.jsonl"]
    assert matching("x/*.jsonl", names) == ["x/b.jsonl"]
    assert matching("**/*.jsonl", names) == names
    assert matching("x/**/*.jsonl", names) == names[1:]
    assert matching("?.jsonl", names) == ["a.jsonl"]


@pytest.mark.parametrize(
    ("name", "suffix"),
    [("A.JSONL.GZ", ".jsonl"), ("a.Parquet", ".parquet"), ("a.json.zst", ".json"), ("a.txt", ""), ("a", "")],
)
def test_formats(name, suffix):
    assert format_of(name) == suffix
