"""Which files of a model folder hold its weights, and what is said of those that can't be used."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from astraflow.errors import ConfigError
from astraflow.models.folder import check_folder, read_model, weight_files
from astraflow.models.resolve import resolve_model

CONFIG = {"model_type": "llama", "vocab_size": 4, "max_position_embeddings": 8}
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def whole(folder: Path, name: str = "model.safetensors", tensor: str = "a") -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file({tensor: np.arange(4, dtype=np.float32)}, folder / name)


def sharded(folder: Path) -> None:
    whole(folder, ONE, "a")
    whole(folder, TWO, "b")
    index = {"metadata": {}, "weight_map": {"a": ONE, "b": TWO}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_files_that_the_index_does_not_name_do_not_count(tmp_path: Path) -> None:
    sharded(tmp_path)
    whole(tmp_path, "consolidated.safetensors", "stray")
    (tmp_path / "pytorch_model.bin").write_bytes(b"stray")
    assert [path.name for path in weight_files(tmp_path)] == [ONE, TWO]
    assert set(read_model(tmp_path)[1]) == {"a", "b"}


def test_a_whole_file_counts_before_an_index(tmp_path: Path) -> None:
    """As transformers chooses."""
    sharded(tmp_path)
    whole(tmp_path, tensor="all")
    assert set(read_model(tmp_path)[1]) == {"all"}


def _pointer(folder: Path) -> None:
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1000\n"
    (folder / "model.safetensors").write_text(text)


def _cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def _longer(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes() + b"x")


def _config(**changes: object) -> Callable[[Path], None]:
    return lambda folder: (folder / "config.json").write_text(json.dumps(CONFIG | changes)) and None


def _instead(name: str, data: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / name).write_bytes(data)

    return change


def _beside(name: str, data: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(data) and None


FAULTS: list[tuple[Callable[[Path], None], str]] = [
    (lambda folder: (folder / "model.safetensors").unlink(), r"no model\.safetensors and no model\.safetensors\.index"),
    (_instead("pytorch_model.bin", b"x"), r"no model\.safetensors, only pytorch_model\.bin; load it with transformers"),
    (_instead("model.gguf", b"x"), r"only model\.gguf; load it with transformers"),
    (_instead("consolidated.safetensors", b"x"), r"no model\.safetensors, only consolidated\.safetensors"),
    (_instead("model.safetensors.index.json", b"{"), "is no index of shards"),
    (_instead("model.safetensors.index.json", b"[]"), "is no index of shards"),
    (_instead("model.safetensors.index.json", b'{"weight_map": {}}'), "names no shards"),
    (_instead("model.safetensors.index.json", b'{"weight_map": {"a": "../x.safetensors"}}'), r"names '\.\./x"),
    (_instead("model.safetensors.index.json", b'{"weight_map": {"a": 3}}'), "names 3 as a shard"),
    (_instead("model.safetensors.index.json", b'{"weight_map": {"a": "b.safetensors"}}'), r"lacks b\.safetensors"),
    (_pointer, "is a git-lfs pointer"),
    (_cut, "is cut off or damaged"),
    (_longer, "is cut off or damaged"),
    (_instead("model.safetensors", b""), "is no safetensors file"),
    (_instead("model.safetensors", b"PK\x03\x04" + bytes(100)), "is no safetensors file"),
    (_instead("model.safetensors", bytes(100)), "is no safetensors file"),
    (_instead("model.safetensors", b"\x04" + bytes(7) + b"[{}]"), "is no safetensors file"),
    (_beside("adapter_config.json", b"{}"), "holds an adapter"),
    (_config(quantization_config={"quant_method": "awq"}), "quantised .awq."),
    (_config(model_type="own", auto_map={"AutoModelForCausalLM": "own.Model"}), "trust_remote_code"),
    (_config(eos_token_id="</s>"), "eos_token_id"),
    (_beside("generation_config.json", b"{"), r"generation_config\.json is not JSON"),
    (_beside("config.json", b"not json"), r"config\.json is not JSON"),
]


@pytest.mark.parametrize(("change", "words"), FAULTS)
def test_unusable_folders_are_refused_in_words(
    change: Callable[[Path], None], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("nobody is asked"))
    whole(tmp_path)
    check_folder(tmp_path)
    change(tmp_path)
    for look in (check_folder, read_model, lambda folder: resolve_model(str(folder))):
        with pytest.raises(ConfigError, match=words):
            look(tmp_path)


def test_missing_shards_are_named(tmp_path: Path) -> None:
    sharded(tmp_path)
    (tmp_path / TWO).unlink()
    with pytest.raises(ConfigError, match=rf"lacks {TWO}, which model\.safetensors\.index\.json names"):
        check_folder(tmp_path)


def test_a_family_that_transformers_has_may_bring_code_that_is_not_run(tmp_path: Path) -> None:
    whole(tmp_path)
    _config(auto_map={"AutoConfig": "own.Config"})(tmp_path)
    (tmp_path / "own.py").write_text("raise SystemExit")
    check_folder(tmp_path)
