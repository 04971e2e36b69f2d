"""The slot decoder computes what transformers computes: prompts whole, in pieces, reused, and beside each other."""

import json

import numpy as np
import pytest
import torch

from astraflow.engines.architecture import decoder_spec
from astraflow.engines.base import EngineRequest
from astraflow.engines.decoder import SlotDecoder
from astraflow.engines.rope import tables
from astraflow.engines.sequences import Running, Segment
from astraflow.errors import WeightsError
from astraflow.messages import Sampling
from astraflow.models.derived import derived_config
from tests.engines.engine_models import FAMILIES, TinyModel, host_tensor, prompt, tiny_model


def decoder(model: TinyModel, dtype: torch.dtype = torch.float32, budget_bytes: int = 64 << 20) -> SlotDecoder:
    spec = decoder_spec(derived_config(json.loads(model.files["config.json"])), model.tensors)
    assert spec is not None
    return SlotDecoder(spec, model.tensors, dtype=dtype, max_sequences=8, budget_bytes=budget_bytes)


def running(tokens: np.ndarray, room: int = 20) -> Running:
    request = EngineRequest(id="r", prompt_tokens=tokens, sampling=Sampling(max_new_tokens=room), seed=0)
    return Running.of(request, ())


def push(sequence: Running, token: int) -> None:
    sequence.tokens[sequence.known] = token
    sequence.known += 1


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, atol=1e-5 * float(want.abs().max()), rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers_for_prompts_and_decoded_tokens(family: str) -> None:
    model = tiny_model(family)
    slots = decoder(model)
    sequences = [running(prompt(length, seed=length)) for length in (1, 9, 33, 100)]
    assert all(slots.admit(item) for item in sequences)
    got = slots.forward([Segment(item, item.known) for item in sequences])
    for step in range(12):
        for index, item in enumerate(sequences):
            close(got[index], model.logits(item.tokens[: item.known].tolist())[-1])
            push(item, (7 * step + index) % 60)
        got = slots.forward([Segment(item, 1) for item in sequences])


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_prompt_in_pieces_beside_decoding_sequences_gives_the_same_logits(family: str) -> None:
    model = tiny_model(family)
    slots = decoder(model)
    short, long = running(prompt(6, seed=1)), running(prompt(90, seed=2))
    assert slots.admit(short)
    assert slots.admit(long)
    slots.forward([Segment(short, 6)])
    for count in (40, 1, 30, 19):
        push(short, count)
        got = slots.forward([Segment(short, 1), Segment(long, count)])
        close(got[0], model.logits(short.tokens[: short.known].tolist())[-1])
    assert got.shape[0] == 2
    close(got[1], model.logits(long.tokens[:90].tolist())[-1])


def test_a_common_prefix_is_copied_from_running_and_from_finished_sequences() -> None:
    model = tiny_model("llama")
    slots = decoder(model)
    first = running(prompt(50, seed=3))
    assert slots.admit(first)
    slots.forward([Segment(first, 50)])
    other = first.tokens[:50].copy()
    other[40:] = prompt(10, seed=4)
    branch = running(other)
    assert slots.admit(branch)
    assert branch.computed == 40
    close(slots.forward([Segment(branch, 10)])[0], model.logits(other.tolist())[-1])
    slots.release(first)
    slots.release(branch)
    again = running(first.tokens[:50])
    assert slots.admit(again)
    assert again.computed == 49, "at least one token must be computed to have logits"
    close(slots.forward([Segment(again, 1)])[0], model.logits(first.tokens[:50].tolist())[-1])


def test_releasing_a_sequence_leaves_the_others_intact() -> None:
    model = tiny_model("qwen2")
    slots = decoder(model)
    sequences = [running(prompt(20 + i, seed=i)) for i in range(5)]
    for item in sequences:
        assert slots.admit(item)
    slots.forward([Segment(item, item.known) for item in sequences])
    for gone in (0, 2, 0):
        slots.release(sequences.pop(gone))
        for item in sequences:
            push(item, 11)
        got = slots.forward([Segment(item, 1) for item in sequences])
        for row, item in zip(got, sequences, strict=True):
            close(row, model.logits(item.tokens[: item.known].tolist())[-1])


def test_caches_of_older_weights_are_not_reused() -> None:
    model, other = tiny_model("llama"), tiny_model("llama", seed=1)
    slots = decoder(model)
    first = running(prompt(30))
    assert slots.admit(first)
    slots.forward([Segment(first, 30)])
    slots.check(other.tensors)
    slots.prepare(other.tensors)()
    again = running(prompt(30))
    assert slots.admit(again)
    assert again.computed == 0
    close(slots.forward([Segment(again, 30)])[0], other.logits(prompt(30).tolist())[-1])


def test_a_subset_of_fused_weights_can_be_written() -> None:
    model, other = tiny_model("qwen2"), tiny_model("qwen2", seed=1)
    names = ["model.layers.1.self_attn.k_proj.weight", "model.layers.2.mlp.up_proj.weight", "model.norm.weight"]
    slots = decoder(model)
    slots.prepare({name: other.tensors[name] for name in names})()
    mixed = decoder(TinyModel(None, model.files, {**model.tensors, **{name: other.tensors[name] for name in names}}))
    got = []
    for item in (slots, mixed):
        sequence = running(prompt(15))
        assert item.admit(sequence)
        got.append(item.forward([Segment(sequence, 15)]))
    assert torch.equal(got[0], got[1])


def test_bf16_is_close_and_swaps_refresh_the_reordered_weights() -> None:
    model, other = tiny_model("llama-untied"), tiny_model("llama-untied", seed=1)
    slots = decoder(model, torch.bfloat16)
    for reference in (model, other):
        slots.prepare(reference.tensors)()
        sequence = running(prompt(25))
        assert slots.admit(sequence)
        got = torch.log_softmax(slots.forward([Segment(sequence, 25)])[0].float(), -1)
        want = torch.log_softmax(reference.logits(prompt(25).tolist())[-1], -1)
        assert (got.exp() - want.exp()).abs().max() < 0.15
        slots.release(sequence)


def test_missing_weights_are_named() -> None:
    model = tiny_model("llama")
    tensors = {name: tensor for name, tensor in model.tensors.items() if "layers.1.mlp" not in name}
    with pytest.raises(WeightsError, match=r"lack 3 tensors.*layers\.1\.mlp"):
        decoder(TinyModel(None, model.files, tensors))


def test_a_tied_head_that_the_checkpoint_repeats_is_ignored() -> None:
    model = tiny_model("llama")
    repeated = {**model.tensors, "lm_head.weight": model.tensors["model.embed_tokens.weight"]}
    sequence = running(prompt(5))
    slots = decoder(TinyModel(None, model.files, repeated))
    assert slots.admit(sequence)
    close(slots.forward([Segment(sequence, 5)])[0], model.logits(prompt(5).tolist())[-1])


def test_a_head_that_differs_from_the_embedding_it_is_said_to_be_tied_to_is_used() -> None:
    model = tiny_model("llama")
    doubled = host_tensor(2 * model.reference.lm_head.weight)
    sequence = running(prompt(5))
    slots = decoder(TinyModel(None, model.files, {**model.tensors, "lm_head.weight": doubled}))
    assert slots.admit(sequence)
    close(slots.forward([Segment(sequence, 5)])[0], 2 * model.logits(prompt(5).tolist())[-1])


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "mistral"},
        {"hidden_act": "gelu"},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}},
        {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 1, "sliding_window": 8},
        {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_parameters": None, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
    ],
)
def test_what_the_slot_decoder_cannot_do_exactly_is_left_to_the_fallback(change: dict[str, object]) -> None:
    config = json.loads(tiny_model("llama").files["config.json"])
    assert decoder_spec(derived_config(config), {}) is not None
    assert decoder_spec(derived_config(config | change), {}) is None


def test_positions_are_exact_beyond_what_bf16_can_count() -> None:
    positions = torch.tensor([255, 257, 259, 4097, 8191])
    inverse = torch.tensor([1.0, 0.1])
    cos, sin = tables(inverse, positions, torch.float32)
    angles = positions.double().unsqueeze(1) * inverse.double()
    assert torch.allclose(cos.squeeze(1).double(), angles.cos(), atol=1e-3)
    assert torch.allclose(sin.squeeze(1).double(), angles.sin(), atol=1e-3)


def test_a_version_that_is_prepared_changes_nothing_before_it_is_put_in_place() -> None:
    versions = [tiny_model("llama", seed=seed) for seed in range(3)]  # its embedding is its head too, and is packed
    slots = decoder(versions[0], torch.bfloat16)

    def logits() -> torch.Tensor:
        sequence = running(prompt(5))  # too short to be reused
        assert slots.admit(sequence)
        found = slots.forward([Segment(sequence, 5)]).clone()
        slots.release(sequence)
        return found

    for version in versions[1:]:
        before = logits()
        put = slots.prepare(version.tensors)
        assert torch.equal(logits(), before)
        put()
        assert not torch.equal(logits(), before)
