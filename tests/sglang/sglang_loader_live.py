"""The weight loader in real SGLang servers on the CPU: bit by bit what a full load gives. `make test-sglang`.

Not part of the suite: its name doesn't begin with `test_`. Prints what it measures; asserts no times.
"""

import json
import logging
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from astraflow.engines.sglang.update_file import update_bytes, write_update
from tests.sglang.server import Server, running_server, sglang_python
from tests.sglang.support import NAMES, SERVERSIDE, disturbed, host, sparse

LOG = logging.getLogger(__name__)
TINY = {"vocab_size": 97, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2}
TINY |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
SMOL = {"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30}
SMOL |= {"num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 2048}
MODELS: dict[str, dict[str, Any]] = {
    "llama-bias-untied": {"model_type": "llama", "attention_bias": True, "tie_word_embeddings": False, **TINY},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True, **TINY},
    "qwen3": {"model_type": "qwen3", "head_dim": 24, "tie_word_embeddings": True, **TINY},
    "qwen3-moe": {
        "model_type": "qwen3_moe",
        "head_dim": 24,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "decoder_sparse_step": 1,
        "tie_word_embeddings": False,
        **TINY,
    },
    "smollm2-size": {"model_type": "llama", "tie_word_embeddings": True, **SMOL},
}
pytestmark = pytest.mark.skipif(not sglang_python().exists(), reason="no SGLang: make sglang-cpu")


def save(tensors: dict[str, Tensor], folder: Path, config: dict[str, Any]) -> None:
    """A checkpoint as the server loads it."""
    folder.mkdir(exist_ok=True)
    AutoConfig.for_model(**config, bos_token_id=0, eos_token_id=1, dtype="bfloat16").save_pretrained(folder)
    settings = json.loads((folder / "config.json").read_text())
    with torch.device("meta"):
        architecture = type(AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))).__name__
    (folder / "config.json").write_text(json.dumps(settings | {"architectures": [architecture]}))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def checkpoint(config: dict[str, Any], folder: Path) -> dict[str, Tensor]:
    """Random weights under the names that transformers saves."""
    from safetensors.torch import load_file

    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config)).to(torch.bfloat16)
    model.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def described(server: Server, tensors: dict[str, Tensor]) -> dict[str, Any]:
    request = {name: (NAMES[tensor.dtype], list(tensor.shape)) for name, tensor in tensors.items()}
    return server.load("describe", {"tensors": json.dumps(request)})


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", MODELS)
def test_updates_give_what_a_full_load_gives(kind: str, tmp_path: Path) -> None:
    config, generator = MODELS[kind], torch.Generator().manual_seed(1)
    old = checkpoint(config, tmp_path / "first")
    save(old, tmp_path / "first", config)
    with running_server(tmp_path / "first", tmp_path) as server:
        before = server.checksums()
        description = described(server, old)
        assert server.checksums() == before
        assert "reason" not in description
        assert set(description["traceable"]) == old.keys()
        LOG.info(f"{kind}: traced {len(old)} tensors in {description['trace_s']:.3f} s")

        sent = []
        for share in (0.015, 0.3):
            new = disturbed(old, share, generator)
            changes = sparse(old, new)
            if share > 0.1:
                changes |= {name: host(new[name]) for name in sorted(new)[::2]}
            started_s = time.perf_counter()
            size = write_update(tmp_path / "update", changes)
            wrote_s = time.perf_counter() - started_s
            started_s = time.perf_counter()
            answer = server.load("apply_update", {"path": str(tmp_path / "update")})
            whole_s = time.perf_counter() - started_s
            assert answer["state"] == "applied", answer
            LOG.info(f"{share:.1%}: {size / 1e6:.1f} MB written in {wrote_s:.3f} s, call {whole_s:.3f} s, {answer}")
            sent.append(server.checksums())
            old = new
            if share < 0.1:
                save(new, tmp_path / "second", config)
        assert sent[0] != before
        save(old, tmp_path / "third", config)
        for folder, checksums in zip(("second", "third"), sent, strict=True):
            server.ask("/update_weights_from_disk", {"model_path": str(tmp_path / folder)})
            assert server.checksums() == checksums

        broken = update_bytes(sparse(old, disturbed(old, 0.01, generator)))[:-64]
        answer = server.load("apply_update", {"update": broken})
        assert answer["state"] == "unchanged"
        assert "update file" in answer["reason"]
        assert server.checksums() == sent[1]  # and it still answers


@pytest.mark.timeout(1800)
def test_each_of_two_ranks_gets_its_part(tmp_path: Path) -> None:
    """SGLang's own classes, both ranks pretended in one process: see `two_ranks.py`."""
    environment = os.environ | {"PYTHONPATH": str(SERVERSIDE), "SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1"}
    script = Path(__file__).with_name("two_ranks.py")
    done = subprocess.run(
        [str(sglang_python()), str(script)], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    LOG.info(done.stdout)
    assert done.stdout.count("exact") == 10
