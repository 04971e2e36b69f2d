"""Models and files by their names on the hub: from a cache, by download, and what is said when neither works."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from astraflow.models.hub import is_hub_id
from tests.models.hub_server import COMMIT, hub

MODEL = {
    "config.json": b'{"model_type": "llama", "vocab_size": 4, "max_position_embeddings": 8}',
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"x",
    "additional_chat_templates/tool_use.jinja": b"y",
    "model.safetensors": save({"weight": np.zeros(4, np.float32)}),
    "consolidated.safetensors": b"the same weights again",
    "onnx/config.json": b"{}",
}
FILE = "hf://datasets/org/questions/main/train.jsonl"
QUESTIONS = {"main/train.jsonl": b'{"question": "1+1", "answer": "2"}\n'}
NOBODY = "http://127.0.0.1:9"  # no hub


def laid_out(home: Path, files: dict[str, bytes]) -> Path:
    """The folder of org/name in a cache as huggingface_hub makes it."""
    repository = home / "hub/models--org--name"
    folder = repository / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(COMMIT)
    (repository / "blobs").mkdir()
    for name, data in files.items():
        (repository / "blobs" / f"{name}-blob").write_bytes(data)
        (folder / name).symlink_to(Path("../../blobs") / f"{name}-blob")
    return folder


def prepared(home: Path, model: str, **environment: str) -> tuple[int, str]:
    """Exit code and last line of what `up` runs to prepare a model."""
    return _last_line("-m", "astraflow.node.prepare", model, home=home, **environment)


def fetched(home: Path, url: str, **environment: str) -> tuple[int, str]:
    """Likewise of a file."""
    return _last_line(
        "-c", f"from astraflow.models.hub_datasets import *; print(*hub_files({url!r}))", home=home, **environment
    )


def _last_line(*command: str, home: Path, **environment: str) -> tuple[int, str]:
    environment = {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", **environment}
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment)
    return done.returncode, (done.stderr if done.returncode else done.stdout).strip().splitlines()[-1]


@pytest.mark.parametrize("name", ["Qwen/Qwen3-1.7B", "org/name", "HuggingFaceTB/SmolLM2-135M_x"])
def test_ids(name):
    assert is_hub_id(name)


@pytest.mark.parametrize(
    "name", ["", "name", "./a", "../a", "~/a", "/a", "a/", "a/b/c", "a /b", "a/.b", "a/b..c", "é/b"]
)
def test_no_ids(name):
    assert not is_hub_id(name)


def test_what_looks_like_a_path_here_is_no_id(tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    assert not is_hub_id("runs/modle")


def test_a_complete_model_in_the_cache_is_used_offline(tmp_path):
    folder = laid_out(tmp_path, {name: data for name, data in MODEL.items() if "/" not in name})
    code, line = prepared(tmp_path, "org/name", HF_HUB_OFFLINE="1", HF_ENDPOINT=NOBODY)
    assert (code, json.loads(line)) == (0, {"org/name": str(folder)})


def test_half_a_model_in_the_cache_is_not_used(tmp_path):
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    files = {name: MODEL[name] for name in ("config.json", "tokenizer.json")}
    files["model.safetensors.index.json"] = json.dumps(index).encode()
    laid_out(tmp_path, files | {"model-00001-of-00002.safetensors": b"weights"})
    code, line = prepared(tmp_path, "org/name", HF_HUB_OFFLINE="1")
    assert (code, line) == (3, "model org/name isn't in the Hugging Face cache, and HF_HUB_OFFLINE is set")


def test_a_model_is_downloaded_once_with_what_it_needs(tmp_path):
    with hub({"org/name": MODEL}, {}) as address:
        code, line = prepared(tmp_path, "org/name", HF_ENDPOINT=address)
    assert code == 0, line
    folder = Path(json.loads(line)["org/name"])
    wanted = {"config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"}
    wanted |= {"additional_chat_templates/tool_use.jinja"}
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert found == {name: MODEL[name] for name in wanted}
    assert prepared(tmp_path, "org/name", HF_ENDPOINT=NOBODY) == (0, line)


def test_a_file_of_a_dataset_is_downloaded_once(tmp_path):
    with hub({}, {"org/questions": QUESTIONS}) as address:
        code, line = fetched(tmp_path, FILE, HF_ENDPOINT=address)
        assert code == 0, line
        missing = fetched(tmp_path, f"{FILE}.gz", HF_ENDPOINT=address)
    assert Path(line).read_bytes() == QUESTIONS["main/train.jsonl"]
    assert fetched(tmp_path, FILE, HF_ENDPOINT=NOBODY) == (0, line)
    assert missing[1].endswith("there is no main/train.jsonl.gz of dataset org/questions on the Hugging Face hub")


def test_an_unknown_model_is_the_users_mistake(tmp_path):
    with hub({}, {}) as address:
        code, line = prepared(tmp_path, "org/nmae", HF_ENDPOINT=address)
    assert code == 3
    assert line == "there is no model org/nmae on the Hugging Face hub; a private one needs `hf auth login`"


def test_a_model_without_safetensors_is_refused(tmp_path):
    with hub({"org/name": {"config.json": b"{}", "pytorch_model.bin": b""}}, {}) as address:
        code, line = prepared(tmp_path, "org/name", HF_ENDPOINT=address)
    assert code == 3
    assert "no model*.safetensors" in line


@pytest.mark.slow
def test_without_a_network_it_says_what_to_do(tmp_path):
    code, line = prepared(tmp_path, "org/name", HF_ENDPOINT=NOBODY)
    assert code == 3
    assert "the hub can't be reached" in line
    assert "hf download org/name" in line
