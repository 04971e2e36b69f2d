"""What ranks store and hand out: any number resumes it bit for bit, damage is refused, exports are one process's."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from astraflow.errors import WeightsError
from astraflow.learners.torch_learner import TorchLearner
from tests.learners.learner_cases import batch, digest, model_folder
from tests.learners.ranks.on_ranks import on_ranks
from tests.learners.ranks.ranked_cases import masters, ranked, settings

ONE = settings("critic", "bf16")


def save(folder: Path, saved: Path) -> Any:
    """Two steps, then everything on disk; moments too, as one whole state."""
    learner = ranked(folder, ONE)
    for seed in (0, 1):
        assert learner.step(batch(seed)).trained
    learner.save(saved)
    exported = learner.export()
    return masters(learner), digest(exported), sorted(exported)


def resume(folder: Path, saved: Path, again: Path) -> Any:
    learner = ranked(folder, ONE)
    learner.restore(saved)
    learner.save(again)
    found = masters(learner)
    assert learner.step(batch(2)).trained
    return found, masters(learner)


def refuse(folder: Path, saved: Path) -> tuple[str, bool]:
    learner = ranked(folder, ONE)
    before = masters(learner)
    with pytest.raises(WeightsError) as caught:
        learner.restore(saved)
    after = masters(learner)
    return str(caught.value), all(torch.equal(after[name], before[name]) for name in before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model"), dtype=torch.bfloat16, tie_word_embeddings=False)


@pytest.fixture(scope="module")
def saved(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A state of four ranks, and what they had."""
    path = tmp_path_factory.mktemp("saved")
    return path, on_ranks(4, save, folder, path)


def alone(folder: Path, saved: Path) -> TorchLearner:
    learner = TorchLearner(folder, ONE, seed=99, threads=1)
    learner.restore(saved)
    return learner


def test_one_process_resumes_the_state_of_four_ranks_and_exports_what_they_did(
    folder: Path, saved: tuple[Path, Any], tmp_path: Path
) -> None:
    path, results = saved
    learner = alone(folder, path)
    found = masters(learner)
    assert all(torch.equal(found[name], results[0][0][name]) for name in found)
    assert digest(learner.export()) == results[0][1]
    assert all(not names for _, _, names in results[1:])


@pytest.mark.parametrize("size", [2, 3])
def test_other_numbers_of_ranks_resume_it_bit_for_bit(
    folder: Path, saved: tuple[Path, Any], tmp_path: Path, size: int
) -> None:
    path, results = saved
    found, after = on_ranks(size, resume, folder, path, tmp_path)[0]
    assert all(torch.equal(found[name], results[0][0][name]) for name in found)
    again, first = (alone(folder, one)._master.tensors() for one in (tmp_path, path))
    assert again.keys() == first.keys()
    assert all(torch.equal(again[name], first[name]) for name in first)  # moments and steps too
    learner = alone(folder, path)
    assert learner.step(batch(2)).trained
    wanted = masters(learner)
    assert all(torch.allclose(after[name], wanted[name], atol=1e-4) for name in wanted)


def test_a_flipped_bit_in_any_rank_s_file_is_refused_by_all_and_changes_nothing(
    folder: Path, saved: tuple[Path, Any], tmp_path: Path
) -> None:
    path, _ = saved
    for file in path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    victim = tmp_path / "learner-00003.safetensors"
    data = bytearray(victim.read_bytes())
    data[-5] ^= 1
    victim.write_bytes(data)
    for text, untouched in on_ranks(2, refuse, folder, tmp_path):
        assert "doesn't match its digest" in text
        assert untouched
    victim.unlink()
    with pytest.raises(WeightsError, match="can't be read"):
        alone(folder, tmp_path)


def test_a_state_without_its_record_is_none(folder: Path, saved: tuple[Path, Any], tmp_path: Path) -> None:
    path, _ = saved
    for file in path.glob("*.safetensors"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(WeightsError, match=r"learner\.json"):
        alone(folder, tmp_path)
    record = json.loads((path / "learner.json").read_text())
    assert [one["name"] for one in record["files"]][1:] == [f"learner-{rank:05d}.safetensors" for rank in (1, 2, 3)]
