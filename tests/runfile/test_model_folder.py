"""What reading a run file says of a model folder."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.runfile.runfiles import error_of, load_light


def test_a_model_folder_must_hold_a_model(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file.parent / "model").mkdir()
    overrides = (
        "policies.solver.model=model",
        "policies.solver.engine.kind=cpu",
        "policies.solver.trainer.learner=torch",
    )
    assert "model folder model has no config.json" in error_of(file, *overrides)
    config = {"model_type": "llama", "vocab_size": 4, "max_position_embeddings": 8}
    (file.parent / "model/config.json").write_text(json.dumps(config))
    assert "model folder model has no model.safetensors" in error_of(file, *overrides)
    weights = file.parent / "model/model.safetensors"
    save_file({"weight": np.zeros(4, np.float32)}, weights)
    load_light(file, *overrides)
    size = 3 * weights.stat().st_size
    bound = f"bus.max_weights_bytes={size - 1}"
    assert f"3 full versions of policy solver take {size} bytes" in error_of(file, *overrides, bound)
    load_light(file, *overrides, f"bus.max_weights_bytes={size}")
    monkeypatch.setenv("HOME", str(file.parent))
    load_light(file, "policies.solver.model=~/model", *overrides[1:])
    assert f"has {size // 3 - 1} bytes, its header speaks of {size // 3}" in _cut(weights, file, overrides)


def _cut(weights: Path, file: Path, overrides: tuple[str, ...]) -> str:
    weights.write_bytes(weights.read_bytes()[:-1])
    return error_of(file, *overrides)
