"""Names of models."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from astraflow.errors import ConfigError
from astraflow.models.resolve import known_models, resolve_model


def test_known_names():
    assert known_models() == ("smollm2-135m-instruct", "tiny-add", "tiny-reverse", "toy")


def test_the_toy_model_is_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = resolve_model("toy")
    assert folder == tmp_path / "astraflow" / "toy"
    assert {"config.json", "model.safetensors"} <= {path.name for path in folder.iterdir()}


def test_a_folder_is_resolved_if_it_holds_a_model(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text('{"model_type": "llama", "vocab_size": 4, "max_position_embeddings": 8}')
    with pytest.raises(ConfigError, match=r"has no model\.safetensors"):
        resolve_model(str(tmp_path))
    save_file({"weight": np.zeros(4, np.float32)}, tmp_path / "model.safetensors")
    monkeypatch.chdir(tmp_path.parent)
    assert resolve_model(tmp_path.name) == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    assert resolve_model(f"~/{tmp_path.name}") == tmp_path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smollm2-135m", "did you mean 'smollm2-135m-instruct'"),
        ("./nowhere/at/all", "neither a folder, nor a known name"),
        ("", "has no config.json"),
    ],
)
def test_other_names_are_config_errors(name, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        resolve_model(name)
