"""The custom weight loader on a small model that loads like SGLang's: exact, and honest about what it can't do."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from astraflow.engines.sglang.update_file import update_bytes, write_update
from astraflow.weights.codec.changes import Change, ChangedElements
from tests.sglang.fused import RANKS, VOCAB, Fused, checkpoint
from tests.sglang.support import NAMES, as_bytes, bits, disturbed, elements, host, sparse

import astraflow_sglang  # isort: skip

Model = dict[str, Tensor]


def loaded(rank: int, tensors: Model, dtype: torch.dtype = torch.bfloat16) -> Fused:
    model = Fused(rank, dtype)
    model.load_weights(tensors.items())
    return model


def memory(model: Fused) -> dict[str, list[int]]:
    named = [*model.named_parameters(), ("derived", model.derived)]
    return {name: bits(tensor).tolist() for name, tensor in named}


def described(model: Fused, tensors: Model, folder: Path) -> dict[str, Any]:
    request = {name: (NAMES[tensor.dtype], list(tensor.shape)) for name, tensor in tensors.items()}
    reply = folder / "described"
    named = [("tensors", as_bytes(json.dumps(request))), ("reply", as_bytes(str(reply)))]
    astraflow_sglang.describe(model, named)
    answer: dict[str, Any] = json.loads((folder / "described.0").read_text())
    return answer


def applied(model: Fused, changes: dict[str, Change] | bytes, folder: Path) -> dict[str, Any]:
    content = changes if isinstance(changes, bytes) else update_bytes(changes)
    named = [("update", as_bytes(content)), ("reply", as_bytes(str(folder / "reply")))]
    astraflow_sglang.apply_update(model, named)
    answer: dict[str, Any] = json.loads((folder / "reply.0").read_text())
    return answer


@pytest.mark.parametrize("kind", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("rank", range(RANKS))
def test_elements_give_what_a_full_load_gives(rank: int, kind: str, tmp_path: Path) -> None:
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[kind]
    generator = torch.Generator().manual_seed(rank)
    old = checkpoint(generator, dtype)
    model = loaded(rank, old, dtype)
    for share in (0.02, 0.5, 0.0, 1.0):
        new = disturbed(old, share, generator)
        write_update(tmp_path / "update", sparse(old, new))
        astraflow_sglang.apply_update(model, [("path", as_bytes(str(tmp_path / "update")))])
        assert memory(model) == memory(loaded(rank, new, dtype))
        old = new


def test_whole_tensors_and_elements_together(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(5)
    old = checkpoint(generator)
    new = disturbed(old, 0.3, generator)
    changes = sparse(old, new) | {name: host(new[name]) for name in ("q.weight", "embed.weight", "elsewhere.weight")}
    model = loaded(1, old)
    assert applied(model, changes, tmp_path)["state"] == "applied"
    assert memory(model) == memory(loaded(1, new))


def test_bits_that_are_no_numbers_arrive_as_they_are(tmp_path: Path) -> None:
    old = checkpoint(torch.Generator().manual_seed(6))
    new = {
        **old,
        "norm.weight": torch.tensor([0x7F81, -1, -32768, 1], dtype=torch.int16).view(torch.bfloat16).repeat(2),
    }
    model = loaded(0, old)
    assert applied(model, sparse(old, new), tmp_path)["state"] == "applied"
    assert bits(model.norm).tolist() == [0x7F81, 0xFFFF, 0x8000, 1] * 2


@pytest.mark.parametrize("rank", range(RANKS))
def test_tracing_writes_nothing_and_says_what_lands_where(rank: int, tmp_path: Path) -> None:
    old = checkpoint(torch.Generator().manual_seed(7))
    model = loaded(rank, old)
    before = memory(model)
    extra = {
        "scale.weight": torch.ones(1),
        "swapped.weight": torch.ones(3),
        "scaled.weight": old["norm.weight"],
        "absorbed.weight": torch.ones(8, 8),
        "k.bias": torch.ones(5),
    }
    extra = {name: tensor.to(torch.bfloat16) for name, tensor in extra.items()}
    answer = described(model, old | extra, tmp_path)
    assert memory(model) == before
    assert answer["unused"] == ["elsewhere.weight"]
    assert set(answer["traceable"]) == old.keys() - {"elsewhere.weight"}
    assert set(answer["untraceable"]) == {"scale.weight", "swapped.weight", "scaled.weight", "absorbed.weight"}
    assert "replaces the data of swapped" in answer["untraceable"]["swapped.weight"]
    assert "norm is loaded from computed values" in answer["untraceable"]["scaled.weight"]
    assert "derives values" in answer["untraceable"]["absorbed.weight"]
    assert list(answer["refused"]) == ["k.bias"]


def test_what_cannot_be_traced_is_refused_by_elements_and_exact_as_a_whole(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(8)
    old = checkpoint(generator) | {"absorbed.weight": torch.randn(8, 8, generator=generator).to(torch.bfloat16)}
    new = disturbed(old, 0.5, generator)
    model = loaded(0, old)
    before = memory(model)
    answer = applied(model, sparse(old, new), tmp_path)
    assert (answer["state"], memory(model)) == ("unchanged", before)
    assert "absorbed.weight can't be updated by elements, send it whole" in answer["reason"]
    changes = sparse(old, new) | {"absorbed.weight": host(new["absorbed.weight"])}
    assert applied(model, changes, tmp_path)["state"] == "applied"
    assert memory(model) == memory(loaded(0, new))


@pytest.mark.parametrize("kind", ["truncated", "shape", "elements-shape", "nothing", "no-file"])
def test_a_bad_update_changes_nothing(kind: str, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(9)
    old = checkpoint(generator)
    changes = sparse(old, disturbed(old, 0.5, generator))
    model = loaded(0, old)
    before = memory(model)
    if kind == "shape":
        changes["q.weight"] = host(torch.ones(3, 3))
    if kind == "elements-shape":
        changes["embed.weight"] = elements(torch.zeros(VOCAB + 1, 8), torch.ones(VOCAB + 1, 8))
    named = {
        "truncated": [("update", as_bytes(update_bytes(changes)[:-64]))],
        "nothing": [],
        "no-file": [("path", as_bytes(str(tmp_path / "missing")))],
    }.get(kind, [("update", as_bytes(update_bytes(changes)))])
    with pytest.raises(astraflow_sglang.UpdateError, match=r"update file|q.weight|embed.weight|uint8|missing"):
        astraflow_sglang.apply_update(model, named)
    assert memory(model) == before
    astraflow_sglang.apply_update(model, [*named, ("reply", as_bytes(str(tmp_path / "reply")))])
    assert json.loads((tmp_path / "reply.0").read_text())["state"] == "unchanged"


def test_an_update_that_fails_while_it_is_written_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = checkpoint(torch.Generator().manual_seed(10))
    model = loaded(0, old)
    changes = {name: host(tensor) for name, tensor in old.items()}
    assert applied(model, changes, tmp_path)["state"] == "applied"

    def out_of_memory(*_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(model, "load_weights", out_of_memory)
    answer = applied(model, changes, tmp_path)
    assert answer["state"] == "partial"
    assert "no room" in answer["reason"]
    assert "load it in full" in answer["reason"]


def test_traces_are_kept_until_the_memory_moves(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(11)
    old = checkpoint(generator)
    model = loaded(0, old)
    loads = []
    original = model.load_weights
    model.load_weights = lambda weights: loads.append(1) or original(weights)  # type: ignore[assignment,method-assign,func-returns-value]
    for expected in (1, 1, 2):
        new = disturbed(old, 0.2, generator)
        if expected == 2:
            model.norm.data = model.norm.data.clone()
        assert applied(model, sparse(old, new), tmp_path)["state"] == "applied"
        assert memory(model) == memory(loaded(0, new))
        assert len(loads) == expected
        old = new


def test_elements_that_are_not_sorted_are_applied(tmp_path: Path) -> None:
    old = checkpoint(torch.Generator().manual_seed(12))
    new = disturbed(old, 0.5, torch.Generator().manual_seed(13))
    change = elements(old["down.weight"], new["down.weight"])
    backwards = ChangedElements(change.dtype, change.shape, change.positions[::-1], change.values[::-1])
    model = loaded(1, old)
    assert applied(model, {"down.weight": backwards}, tmp_path)["state"] == "applied"
    assert memory(model) == memory(loaded(1, {**old, "down.weight": new["down.weight"]}))
