"""Model folders in the shape of real ones, each read by engine and learner as transformers reads it, or by neither."""

import asyncio
import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from astraflow.config import EngineSection, TrainerSection
from astraflow.engines.cpu import CpuEngine
from astraflow.errors import ConfigError
from astraflow.learners.torch_learner import TorchLearner
from astraflow.models.loading import load_tensors

FAMILIES = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "families.py"))
WEIGHTS = "model.safetensors"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def folder_of(folder: Path, family: str = "qwen2", **changes: Any) -> Path:
    FAMILIES["build"](family, folder, **changes)
    return folder


def edit(folder: Path, **changes: Any) -> None:
    """Change config.json; ... removes a key."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def edit_tensors(folder: Path, change: Any) -> None:
    tensors = load_file(folder / WEIGHTS)
    save_file({name: tensor.clone() for name, tensor in change(tensors).items()}, folder / WEIGHTS, {"format": "pt"})


def apart(folder: Path) -> tuple[float, float, str]:
    """Engine from transformers, learner from engine, and what the engine computed with."""
    tokens, logprobs, decoder = asyncio.run(
        FAMILIES["_sampled"](CpuEngine(*load_tensors(folder), section=FAMILIES["ENGINE"]))
    )
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    served = FAMILIES["_apart"](reference, tokens, logprobs)
    learner = TorchLearner(folder, FAMILIES["TRAINER"], seed=0, threads=1)
    tokens, logprobs, again = asyncio.run(FAMILIES["_sampled"](FAMILIES["_serving"](learner)))
    assert again == decoder
    return served, learner.step(FAMILIES["_samples"](tokens, logprobs)).metrics["train.mismatch_max"], decoder


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
OLD_LLAMA3, OLDER_LLAMA3 = LLAMA3 | {"rope_type": "llama3"}, LLAMA3 | {"type": "llama3"}
SLIDES: dict[str, Any] = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
NATIVE, FALLBACK = "SlotDecoder", "TransformersModel"


@pytest.mark.parametrize(
    ("family", "changes", "decoder"),
    [
        ("qwen2", {"rope_parameters": {"rope_type": "default"}, "rope_theta": 1e6}, NATIVE),
        ("qwen2", {"rope_parameters": ..., "rope_theta": 1e5}, NATIVE),
        ("qwen2", {"rope_parameters": ..., "rope_theta": ...}, NATIVE),
        ("qwen2", {"rope_parameters": None, "rope_scaling": None, "rope_theta": 500.0}, NATIVE),
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0}, "rope_theta": 1e6}, NATIVE),
        ("llama", {"rope_parameters": ..., "rope_theta": 9.0, "rope_scaling": OLD_LLAMA3}, NATIVE),
        ("llama", {"rope_parameters": ..., "rope_theta": 9.0, "rope_scaling": OLDER_LLAMA3}, NATIVE),
        ("llama", {"rope_parameters": ..., "rope_scaling": {"type": "linear", "factor": 2.0}}, FALLBACK),
        ("llama", {"rope_parameters": ..., "rope_scaling": {"type": "dynamic", "factor": 2.0}}, FALLBACK),
        ("qwen2", {"rope_parameters": ..., "rope_scaling": {"type": "yarn", "factor": 4.0}}, FALLBACK),
        ("qwen3", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}}, FALLBACK),
        ("llama", {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, FALLBACK),
        ("llama", {"partial_rotary_factor": 0.5}, FALLBACK),
        ("llama", {"hidden_act": "gelu"}, FALLBACK),
        ("llama", {"rms_norm_eps": 0.1}, NATIVE),
        ("qwen2", {"rms_norm_eps": ...}, NATIVE),
        ("qwen2", {"mlp_bias": True, "attention_bias": False}, NATIVE),  # keys of other families
        ("qwen2", SLIDES | {"layer_types": ...}, FALLBACK),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 4}, NATIVE),
        ("qwen3", SLIDES | {"layer_types": ["full_attention", "sliding_attention"]}, FALLBACK),
        ("llama", {"head_dim": None}, NATIVE),
        ("llama", {"head_dim": ...}, NATIVE),
        ("llama", {"torch_dtype": "float32", "dtype": ...}, NATIVE),
        ("llama", {"auto_map": {"AutoModelForCausalLM": "own.Model"}}, NATIVE),
        ("mistral", {"sliding_window": None}, FALLBACK),
    ],
)
def test_dialects_of_a_config_mean_what_they_mean_to_transformers(
    family: str, changes: dict[str, Any], decoder: str, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path, family)
    edit(folder, **changes)
    served, trained, found = apart(folder)
    assert (served < 1e-4, trained < 1e-4, found) == (True, True, decoder), (served, trained)


@pytest.mark.parametrize("scaling", [{"type": "su"}, {"rope_type": "longrope"}, {"rope_type": "no-such-kind"}])
def test_scaling_that_transformers_refuses_is_refused_by_both(scaling: dict[str, Any], tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "llama")
    edit(folder, rope_parameters=..., rope_scaling=scaling)
    for read in (load_tensors, lambda path: TorchLearner(path, TrainerSection(steps=1), seed=0, threads=1)):
        with pytest.raises(ConfigError):
            read(folder)


def test_a_config_with_which_transformers_cannot_compute_is_refused_by_both(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "qwen3")
    files, tensors = load_tensors(folder)
    edit(folder, layer_types=["full_attention", "sliding_attention"], use_sliding_window=False)  # the window is None
    with pytest.raises(ConfigError, match="can't compute with this qwen3 model"):
        load_tensors(folder)
    engine = CpuEngine(
        files | {"config.json": (folder / "config.json").read_bytes()}, tensors, section=FAMILIES["ENGINE"]
    )
    with pytest.raises(ConfigError, match="can't compute with this qwen3 model"):
        asyncio.run(engine.start())


def test_longrope_is_the_same_up_to_where_its_frequencies_change(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "phi3")
    factors = {"short_factor": [1.0 + 0.1 * k for k in range(8)], "long_factor": [3.0] * 8}
    edit(folder, rope_parameters=..., rope_scaling={"type": "longrope"} | factors, original_max_position_embeddings=64)
    served, trained, _ = apart(folder)
    assert max(served, trained) < 1e-4
    assert CpuEngine(*load_tensors(folder), section=FAMILIES["ENGINE"]).context_length == 64


@pytest.mark.parametrize("family", ["qwen2", "mistral"])
@pytest.mark.parametrize(
    "change",
    [
        lambda t: t | {HEAD: 2 * t[EMBEDDING]},
        lambda t: t | {HEAD: t[EMBEDDING].clone()},
        lambda t: {HEAD if name == EMBEDDING else name: tensor for name, tensor in t.items()},
        lambda t: {name.removeprefix("model."): tensor for name, tensor in t.items()},
        lambda t: t | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)},
    ],
    ids=["a head that differs", "an equal head", "only the head", "without prefixes", "a buffer of old"],
)
def test_tied_checkpoints_are_read_as_transformers_reads_them(family: str, change: Any, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, family, tie_word_embeddings=True)
    edit_tensors(folder, change)
    served, trained, _ = apart(folder)
    assert max(served, trained) < 1e-4


def test_a_head_that_differs_is_no_longer_called_tied(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    edit_tensors(folder, lambda t: t | {HEAD: 2 * t[EMBEDDING]})
    files, tensors = load_tensors(folder)
    assert json.loads(files["config.json"])["tie_word_embeddings"] is False
    assert {EMBEDDING, HEAD} <= set(tensors)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t, "lacks tensor lm_head.weight of a qwen2 model; if its output layer is its embedding"),
        (lambda t: {n: x for n, x in t.items() if "norm" not in n} | {HEAD: t[EMBEDDING]}, r"lacks tensors model\."),
        (lambda t: t | {HEAD: t[EMBEDDING], "score.weight": torch.ones(2)}, r"holds tensor score\.weight"),
        (lambda t: t | {HEAD: t[EMBEDDING], "model.layers.2.x": torch.ones(2)}, r"holds tensor model\.layers\.2\.x"),
        (lambda t: t | {HEAD: t[EMBEDDING][:-1]}, r"lm_head\.weight .* has shape \[96, 64\], .* makes it \[97, 64\]"),
    ],
)
def test_missing_surplus_and_misshapen_tensors_are_named_and_refused(change: Any, words: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    edit(folder, tie_word_embeddings=False)
    edit_tensors(folder, change)
    for read in (load_tensors, lambda path: TorchLearner(path, TrainerSection(steps=1), seed=0, threads=1)):
        with pytest.raises(ConfigError, match=words):
            read(folder)


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "gpt_neox"])
def test_names_on_disk_travel_whatever_the_names_in_memory(family: str, tmp_path: Path) -> None:
    """Trained, frozen, exported and evaluated models have the tensors of the folder, and elements of them swap."""
    folder = folder_of(tmp_path / "model", family)
    on_disk = load_file(folder / WEIGHTS)
    learner = TorchLearner(folder, FAMILIES["TRAINER"], seed=0, threads=1)
    for tensors in (load_tensors(folder)[1], learner.export()):
        assert {name: tuple(tensor.shape) for name, tensor in on_disk.items()} == {
            name: tensor.shape for name, tensor in tensors.items()
        }
        assert all(bytes(tensors[name].data) == tensor.numpy().tobytes() for name, tensor in on_disk.items())


def test_experts_swap_one_by_one(tmp_path: Path) -> None:
    from astraflow.learners.torch_learner import TorchLearner as Learner

    folder = folder_of(tmp_path / "model", "qwen3_moe")
    learner = Learner(folder, FAMILIES["TRAINER"], seed=0, threads=1)

    async def swapped() -> tuple[list[int], list[float]]:
        engine = CpuEngine(learner.model_files(), learner.export(), section=EngineSection(dtype="fp32"))
        await engine.start()
        tokens, logprobs, _ = await FAMILIES["_drawn"](engine)
        before = learner.export()
        learner.step(FAMILIES["_samples"](tokens, logprobs))
        changed = {
            name: tensor for name, tensor in learner.export().items() if tensor.digest() != before[name].digest()
        }
        assert any("experts" in name for name in changed)
        await engine.swap(1, changed)
        tokens, logprobs, _ = await FAMILIES["_drawn"](engine)
        await engine.stop()
        return tokens, logprobs

    tokens, logprobs = asyncio.run(swapped())
    (tmp_path / "out").mkdir()
    learner.export_model(tmp_path / "out")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    assert FAMILIES["_apart"](model, tokens, logprobs) < 1e-4
