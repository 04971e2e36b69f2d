"""Question files by their names on the hub: splits, patterns, revisions, what is in the cache, what is said without."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from astraflow.errors import ConfigError
from astraflow.models.hub_datasets import parsed
from tests.models.hub_server import COMMIT, hub

NOBODY = "http://127.0.0.1:9"  # no hub
FILES = {
    "README.md": b"# questions",
    "main/train-00000-of-00002.parquet": b"first",
    "main/train-00001-of-00002.parquet": b"second",
    "main/test.jsonl": b"test",
    "lines/a.jsonl": b"a",
    "lines/b.jsonl": b"b",
}
OLD = {"main/test.jsonl": b"as it was"}
SHARDS = ["main/train-00000-of-00002.parquet", "main/train-00001-of-00002.parquet"]


def fetched(home: Path, name: str, **environment: str) -> list[Path] | str:
    """The files, or the last line of the error."""
    code = (
        f"import json\nfrom astraflow.models.hub_datasets import *\nprint(json.dumps([*map(str, hub_files({name!r}))]))"
    )
    environment = {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", **environment}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    if done.returncode:
        return done.stderr.strip().splitlines()[-1]
    return [Path(path) for path in json.loads(done.stdout)]


def copied(home: Path, *names: str) -> None:
    """A cache as it is copied from a machine that had a network."""
    repository = home / "hub/datasets--org--questions"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs/main").write_text(COMMIT)
    for name in names:
        file = repository / "snapshots" / COMMIT / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(FILES[name])


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("hf://datasets/org/questions/main/train", ("org/questions", "main", "main/train")),
        ("hf://datasets/org/questions@v1.0/test.jsonl", ("org/questions", "v1.0", "test.jsonl")),
        ("hf://datasets/org/q@refs/convert/parquet/default/train", ("org/q", "refs/convert/parquet", "default/train")),
        ("hf://datasets/org/questions@refs%2Fpr%2F1/*.jsonl", ("org/questions", "refs/pr/1", "*.jsonl")),
    ],
)
def test_names(name, parts):
    found = parsed(name)
    assert (found.repository, found.revision, found.files) == parts


@pytest.mark.parametrize(
    "name",
    [
        "hf://datasets/org",
        "hf://datasets/org/questions",
        "hf://datasets/org/questions@v1",
        "hf://datasets//a/b",
        "hf://models/a/b/c",
        "hf://datasets/o rg/name/file",
        "org/questions/train",
    ],
)
def test_what_is_no_name_of_files_is_refused_with_the_form(name):
    with pytest.raises(ConfigError, match="expected hf://datasets/org/name/ and a file, a pattern or a split"):
        parsed(name)


def test_splits_patterns_and_revisions_are_downloaded_once(tmp_path):
    wanted = {
        "hf://datasets/org/questions/main/train": [b"first", b"second"],
        "hf://datasets/org/questions/test": [b"test"],
        "hf://datasets/org/questions/lines/*.jsonl": [b"a", b"b"],
        "hf://datasets/org/questions@v1/main/test": [b"as it was"],
    }
    with hub({}, {"org/questions": FILES, "org/questions@v1": OLD}) as address:
        for name, contents in wanted.items():
            found = fetched(tmp_path, name, HF_ENDPOINT=address)
            assert not isinstance(found, str), found
            assert [path.read_bytes() for path in found] == contents
        missing = fetched(tmp_path, "hf://datasets/org/questions@v2/main/test", HF_ENDPOINT=address)
        typo = fetched(tmp_path, "hf://datasets/org/questions/mian/test.jsonl", HF_ENDPOINT=address)
    for name, contents in wanted.items():
        found = fetched(tmp_path, name, HF_ENDPOINT=NOBODY)
        assert not isinstance(found, str), found
        assert [path.read_bytes() for path in found] == contents
    assert "there is no main/test of dataset org/questions at revision v2 on the Hugging Face hub" in missing
    assert "there is no mian/test.jsonl of dataset org/questions on the Hugging Face hub" in typo


def test_a_copied_cache_is_used_if_it_is_whole(tmp_path):
    copied(tmp_path, *SHARDS)
    found = fetched(tmp_path, "hf://datasets/org/questions/main/train", HF_ENDPOINT=NOBODY)
    assert not isinstance(found, str), found
    assert [path.read_bytes() for path in found] == [b"first", b"second"]


def test_half_of_the_shards_in_the_cache_are_not_the_set(tmp_path):
    copied(tmp_path, SHARDS[0])
    with hub({}, {"org/questions": FILES}) as address:
        found = fetched(tmp_path, "hf://datasets/org/questions/main/train", HF_ENDPOINT=address)
    assert not isinstance(found, str), found
    assert [path.name for path in found] == [Path(name).name for name in SHARDS]


def test_of_a_pattern_the_cache_is_asked_only_offline_until_it_is_known_to_be_whole(tmp_path):
    copied(tmp_path, "lines/a.jsonl")
    name = "hf://datasets/org/questions/lines/*.jsonl"
    offline = fetched(tmp_path, name, HF_HUB_OFFLINE="1")
    assert [path.name for path in offline] == ["a.jsonl"]
    with hub({}, {"org/questions": FILES}) as address:
        assert [path.name for path in fetched(tmp_path, name, HF_ENDPOINT=address)] == ["a.jsonl", "b.jsonl"]
    assert [path.name for path in fetched(tmp_path, name, HF_ENDPOINT=NOBODY)] == ["a.jsonl", "b.jsonl"]


@pytest.mark.parametrize(
    ("name", "command", "local"),
    [
        ("hf://datasets/org/questions/main/train", "--include 'main/*'", "DIR/main/train"),
        ("hf://datasets/org/questions@v1/a.json", "hf download org/questions a.json", "DIR/a.json"),
    ],
)
def test_without_a_network_it_says_what_to_download_where_and_which_key_names_the_copy(tmp_path, name, command, local):
    line = fetched(tmp_path, name, HF_HUB_OFFLINE="1")
    assert "isn't in the Hugging Face cache, and HF_HUB_OFFLINE is set" in line
    assert command in line
    assert f"copy DIR here and set the environment's args.path = '{local}'" in line
    assert ("--revision v1" in line) is ("@v1" in name)


@pytest.mark.slow  # huggingface_hub tries five times
def test_a_hub_that_cannot_be_reached_is_said_with_the_way_around_it(tmp_path):
    line = fetched(tmp_path, "hf://datasets/org/questions/main/train", HF_ENDPOINT=NOBODY)
    assert "main/train of dataset org/questions" in line
    assert "args.path = 'DIR/main/train'" in line
