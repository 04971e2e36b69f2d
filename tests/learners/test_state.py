"""What a learner stores and hands out: bit-equal resumes, stable exports, models that load, dithered masters."""

import json
from pathlib import Path

import msgspec
import pytest
import torch
import transformers

from astraflow.errors import ConfigError, WeightsError
from tests.learners.learner_cases import DTYPES, as_torch, batch, digest, learner, model_folder, section, state


@pytest.mark.parametrize(("dtype", "kept"), DTYPES)
def test_resumed_run_equals_the_uninterrupted_one_bit_for_bit(tmp_path: Path, dtype: str, kept: torch.dtype) -> None:
    folder = model_folder(tmp_path / "model", dtype=kept)
    settings = section(dtype=dtype, warmup_steps=10, weight_decay=0.1)
    first = learner(folder, settings)
    for i in range(3):
        assert first.step(batch(i)).trained
    (tmp_path / "saved").mkdir()
    first.save(tmp_path / "saved")
    second = learner(folder, settings, seed=99)
    second.step(batch(7))  # whatever it did before is replaced
    second.restore(tmp_path / "saved")
    assert digest(second.export()) == digest(first.export())
    for i in range(3, 5):
        a, b = first.step(batch(i)), second.step(batch(i))
        assert {k: v for k, v in a.metrics.items() if not k.endswith("_s")} == {
            k: v for k, v in b.metrics.items() if not k.endswith("_s")
        }
    assert state(first, tmp_path / "a") == state(second, tmp_path / "b")


def test_state_before_the_first_step_is_restored_too(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    first, second = learner(folder), learner(folder)
    before = state(first, tmp_path / "saved")
    second.step(batch())
    second.restore(tmp_path / "saved")
    assert state(second, tmp_path / "again") == before


def test_exported_bytes_stay_when_the_learner_goes_on(tmp_path: Path) -> None:
    one = learner(model_folder(tmp_path))
    exported = one.export()
    before = digest(exported)
    one.step(batch())
    assert digest(exported) == before != digest(one.export())


@pytest.mark.parametrize("tied", [True, False])
def test_exported_names_are_the_checkpoints_and_tied_ones_appear_once(tmp_path: Path, tied: bool) -> None:
    one = learner(model_folder(tmp_path, tie_word_embeddings=tied))
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    names = {name for name, _ in model.named_parameters()}  # without the tied copy
    assert set(one.export()) == names
    assert ("lm_head.weight" in names) != tied
    for name, tensor in one.export().items():
        assert torch.equal(as_torch(tensor), model.get_parameter(name))


@pytest.mark.parametrize(("dtype", "kept"), DTYPES)
def test_exported_model_loads_with_the_learners_weights(tmp_path: Path, dtype: str, kept: torch.dtype) -> None:
    folder = model_folder(tmp_path / "model", dtype=torch.bfloat16)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    one = learner(folder, section(dtype=dtype))
    one.step(batch())
    out = tmp_path / "out"
    out.mkdir()
    one.export_model(out)
    assert (out / "chat_template.jinja").read_text() == "{{ messages }}"
    assert json.loads(one.model_files()["config.json"])["dtype"] == str(kept).removeprefix("torch.")
    model = transformers.AutoModelForCausalLM.from_pretrained(out, local_files_only=True)
    assert model.dtype == kept
    for name, tensor in one.export().items():
        assert torch.equal(model.get_parameter(name), as_torch(tensor))
    assert learner(out, section(dtype=dtype)).export().keys() == one.export().keys()


def test_damaged_or_foreign_state_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    one = learner(model_folder(tmp_path / "model"))
    other = learner(model_folder(tmp_path / "other", num_hidden_layers=3))
    saved = tmp_path / "saved"
    before = state(one, saved)
    with pytest.raises(WeightsError, match="another model: 9 tensors differ"):
        other.restore(saved)
    with pytest.raises(WeightsError, match="can't be read"):
        one.restore(tmp_path)
    data = (saved / "learner.safetensors").read_bytes()
    for damaged in (data[:-5], data[:-5] + b"\x01" + data[-4:], b""):
        (saved / "learner.safetensors").write_bytes(damaged)
        with pytest.raises(WeightsError):
            one.restore(saved)
    assert state(one, tmp_path / "after") == before


def test_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path / "missing", Path("gpt2"), tmp_path):
        with pytest.raises(ConfigError, match=r"config\.json"):
            learner(folder)
    model_folder(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"has no model\.safetensors"):
        learner(tmp_path)


def test_model_that_scales_its_logits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="granite"):
        learner(model_folder(tmp_path, "granite", logits_scaling=8.0))


def test_dither_changes_no_exported_bit_and_makes_the_first_step_count(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, dtype=torch.bfloat16)
    settings = section(dtype="bf16", learning_rate=2e-5)
    dithered = learner(folder, settings)
    on_grid = learner(folder, msgspec.structs.replace(settings, dither=False))
    before = {name: as_torch(tensor) for name, tensor in dithered.export().items()}
    assert digest(dithered.export()) == digest(on_grid.export())
    moved = []
    for one in (dithered, on_grid):
        one.step(batch(6))
        moved.append(sum(int((as_torch(t) != before[name]).sum()) for name, t in one.export().items()))
    assert moved[0] > 2 * moved[1]


def test_dither_depends_on_the_seed_and_not_on_the_fp32_checkpoint(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "bf16", dtype=torch.bfloat16)
    states = [
        state(learner(folder, section(dtype="bf16"), seed=seed), tmp_path / str(i)) for i, seed in enumerate((0, 0, 1))
    ]
    assert states[0] == states[1] != states[2]
    full = model_folder(tmp_path / "fp32")
    masters = [
        state(learner(full, section(dtype="bf16", dither=dither)), tmp_path / f"full{dither}")[1]
        for dither in (True, False)
    ]
    ones = 2 * 2 * 32 + 32  # the norms' weights are exactly 1 and dithered: on the grid, tensor by tensor
    assert sum(a != b for a, b in zip(*masters, strict=True)) < 4 * ones + 64
