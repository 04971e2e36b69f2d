"""The delta codec is exact, and hostile bytes are refused in bounded memory."""

import itertools
import struct
import tracemalloc

import msgspec
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.errors import WeightsError
from astraflow.weights.codec.byte_coding import join_gaps, split_gaps
from astraflow.weights.codec.delta import EncodedDelta, decode, encode, encode_update, pays
from astraflow.weights.codec.differences import BLOCK_WORDS, find_changes, merge
from astraflow.weights.codec.host_copy import HostCopy, apply
from astraflow.weights.codec.payload import PREFIX
from astraflow.weights.codec.tensors import ITEM_SIZES, HostTensor
from tests.weights.delta_models import FLOATS, SPECIAL_BITS, bf16_model, bytes_of, changed_tensor, digests_of, models

Model = dict[str, HostTensor]


def encoded(base: Model, new: Model, base_version: int = 1) -> EncodedDelta:
    return encode(base, new, base_version=base_version, version=base_version + 1, base_digests=digests_of(base))


def shadow_of(model: Model, version: int = 1) -> HostCopy:
    return HostCopy.copy_of(version, model, digests_of(model))


@given(models())
def test_applying_a_delta_gives_the_new_version_to_the_last_bit(chain: list[Model]) -> None:
    base, new = chain
    delta = encoded(base, new)
    shadow = shadow_of(base)
    apply(decode(delta.payload, base), shadow)
    assert bytes_of(shadow.tensors) == bytes_of(new)
    assert shadow.digests == digests_of(new) == {**digests_of(base), **delta.digests}
    assert (shadow.version, shadow.digest) == (2, delta.digest)


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_pair_of_special_values_is_reached_exactly(dtype: str) -> None:
    width = ITEM_SIZES[dtype]
    pairs = np.array(list(itertools.product(SPECIAL_BITS[width], repeat=2)), f"<u{width}")
    base, new = (
        {"w": HostTensor(dtype, (len(pairs),), memoryview(np.ascontiguousarray(pairs[:, i]).view(np.uint8)))}
        for i in (0, 1)
    )
    delta = encoded(base, new)
    assert delta.changed == len(pairs) - len(SPECIAL_BITS[width])  # −0.0 is not 0.0, and equal NaNs are equal
    shadow = shadow_of(base)
    apply(decode(delta.payload, base), shadow)
    assert bytes_of(shadow.tensors) == bytes_of(new)


def test_a_hand_worked_delta_has_the_expected_positions_and_differences() -> None:
    base = np.zeros(1000, "<u2")
    new = base.copy()
    new[[0, 2, 900]] = 1, 0xFFFF, 0x8000  # +1, −1, a flipped sign
    models_ = [{"w": HostTensor("F16", (10, 100), memoryview(bits.view(np.uint8)))} for bits in (base, new)]
    tensor = decode(encoded(*models_).payload, models_[0]).tensors["w"]
    assert tensor.positions.tolist() == [0, 2, 900]
    assert tensor.differences.tolist() == [1, 0xFFFF, 0x8000]
    assert tensor.shape == (10, 100)


@pytest.mark.parametrize("dtype", [*FLOATS, "U8"])
def test_changes_are_found_in_all_blocks_of_a_large_tensor(dtype: str) -> None:
    width = ITEM_SIZES[dtype]
    base = np.zeros(5 * BLOCK_WORDS // 2 * 8 // width + 1, f"<u{width}")
    new = base.copy()
    where = np.unique(np.random.default_rng(3).integers(0, len(base), 300))
    new[where] = 7
    tensors = [HostTensor(dtype, bits.shape, memoryview(bits.view(np.uint8))) for bits in (base, new)]
    positions, differences = find_changes(*tensors)
    assert positions.tolist() == where.tolist()
    assert differences.tolist() == [7] * len(where)


def test_views_at_odd_addresses_are_compared_correctly() -> None:
    rng = np.random.default_rng(5)
    buffers = [np.zeros(2 * 1001 + 3, np.uint8) for _ in range(2)]
    buffers[0][:] = rng.integers(0, 256, len(buffers[0]))
    buffers[1][:] = buffers[0]
    buffers[1][[3, 1001, -1]] += 1
    base, new = ({"w": HostTensor("BF16", (1001,), memoryview(buffer)[3:])} for buffer in buffers)
    delta = encoded(base, new)
    assert delta.changed == 3
    shadow = shadow_of(base)
    apply(decode(delta.payload, base), shadow)
    assert bytes_of(shadow.tensors) == bytes_of(new)


def test_versions_with_different_tensors_are_not_encoded() -> None:
    model = bf16_model(64)
    with pytest.raises(WeightsError, match="only one of two versions"):
        encoded(model, {"embed.weight": model["embed.weight"]})
    reshaped = {**model, "norm.weight": HostTensor("BF16", (4, 4), model["norm.weight"].data)}
    with pytest.raises(WeightsError, match=r"norm\.weight is BF16\[4, 4\], expected BF16\[16\]"):
        encoded(model, reshaped)


@given(models(versions=4))
@settings(max_examples=50)
def test_a_merged_delta_equals_the_chain(chain: list[Model]) -> None:
    updates = [
        decode(encoded(before, after, version).payload, before)
        for version, (before, after) in enumerate(itertools.pairwise(chain))
    ]
    merged = decode(encode_update(merge(updates)).payload, chain[0])
    assert (merged.base_version, merged.version) == (0, 3)
    shadow = shadow_of(chain[0], 0)
    apply(merged, shadow)
    assert bytes_of(shadow.tensors) == bytes_of(chain[-1])
    assert shadow.digests == digests_of(chain[-1])


def test_elements_that_came_back_drop_out_of_a_merged_delta() -> None:
    base = bf16_model(400)
    other = {name: changed_tensor(tensor, 0.5, 1) for name, tensor in base.items()}
    there, back = (decode(encoded(*pair, v).payload, base) for v, pair in enumerate([(base, other), (other, base)]))
    assert there.changed > 100
    merged = merge([there, back])
    assert (merged.changed, dict(merged.tensors)) == (0, {})
    shadow = shadow_of(base, 0)
    apply(merged, shadow)
    assert (shadow.version, bytes_of(shadow.tensors)) == (2, bytes_of(base))


def test_only_updates_that_follow_each_other_are_merged() -> None:
    base = bf16_model(400)
    new = {name: changed_tensor(tensor, 0.5, 1) for name, tensor in base.items()}
    first, later = decode(encoded(base, new, 1).payload, base), decode(encoded(new, base, 3).payload, base)
    with pytest.raises(WeightsError, match=r"to version 2 .* followed by one from 3"):
        merge([first, later])
    with pytest.raises(WeightsError, match="chain of no updates"):
        merge([])


@pytest.fixture(scope="module")
def pair() -> tuple[Model, EncodedDelta]:
    base = bf16_model(4000)
    new = {name: changed_tensor(tensor, 0.02, 1) for name, tensor in base.items()}
    return base, encoded(base, new)


def test_every_truncation_is_refused(pair: tuple[Model, EncodedDelta]) -> None:
    base, delta = pair
    for size in range(len(delta.payload)):
        with pytest.raises(WeightsError):
            decode(delta.payload[:size], base)
    with pytest.raises(WeightsError):
        decode(delta.payload + b"\0", base)


@pytest.mark.parametrize("damage", [0x01, 0x80, 0xFF])
def test_no_damaged_byte_leads_to_another_update(damage: int) -> None:
    base = bf16_model(400)
    new = {name: changed_tensor(tensor, 0.1, 1) for name, tensor in base.items()}
    payload = encoded(base, new).payload
    outcomes = []
    for place in range(len(payload)):
        damaged = bytearray(payload)
        damaged[place] ^= damage
        shadow = shadow_of(base)
        try:
            apply(decode(damaged, base), shadow)
        except WeightsError:
            assert (shadow.version, bytes_of(shadow.tensors)) == (1, bytes_of(base))
            outcomes.append("refused")
        else:  # a bit that nothing depends on, such as the unused one in a zstd frame's descriptor
            assert (shadow.version, bytes_of(shadow.tensors)) == (2, bytes_of(new))
            outcomes.append("harmless")
    assert outcomes.count("harmless") < 0.02 * len(payload)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(noise: bytes) -> None:
    with pytest.raises(WeightsError):
        decode(noise, bf16_model(16))
    with pytest.raises(WeightsError):
        decode(PREFIX.pack(b"AFDELTA1", len(noise), 100) + noise, bf16_model(16))


def test_a_delta_of_another_model_names_the_tensor(pair: tuple[Model, EncodedDelta]) -> None:
    base, delta = pair
    with pytest.raises(WeightsError, match=r"'norm\.weight', which the model doesn't have"):
        decode(delta.payload, {"embed.weight": base["embed.weight"]})
    reshaped = {**base, "norm.weight": HostTensor("BF16", (2, 500), base["norm.weight"].data)}
    with pytest.raises(WeightsError, match=r"norm\.weight is BF16\[1000\], the model has BF16\[2, 500\]"):
        decode(delta.payload, reshaped)


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data) if data else b""


def forged(entries: list[tuple[object, ...]], streams: list[bytes], frames: list[bytes] | None = None) -> bytes:
    """A payload as an attacker would write it: nothing is checked. `frames` replaces the compressed streams."""
    frames = frames or [zstd(stream) for stream in streams]
    raw = msgspec.msgpack.encode(([1, 2, b"b" * 32, b"d" * 32, entries], [len(frame) for frame in frames]))
    return PREFIX.pack(b"AFDELTA1", len(zstd(raw)), len(raw)) + zstd(raw) + b"".join(frames)


def entry(
    changed: int, *, name: str = "w", elements: int = 600, wide_gaps: int = 0, wide_differences: int = 0
) -> tuple[object, ...]:
    return (name, "BF16", (elements,), changed, wide_gaps, wide_differences, b"t" * 32)


ONE = [b"\0", b"", b"\1", b"", b"", b"", b""]  # element 0 changes by 1
FORGERIES = {
    "position outside": (forged([entry(3)], [b"\xfe" * 3, b"", b"\1" * 3, b"", b"", b"", b""]), "outside"),
    "wide gap outside": (
        forged([entry(1, wide_gaps=1)], [b"\xff", struct.pack("<Q", 2**63), b"\1", b"", b"", b"", b""]),
        "wide gaps",
    ),
    "gaps that sum to 2^64": (
        forged(
            [entry(2, wide_gaps=2)],
            [b"\xff" * 2, (np.array([2**63, 2**63], "<u8")).view("u1").reshape(2, 8).T.tobytes(), b"\1\1", *[b""] * 4],
        ),
        "wide gaps",
    ),
    "escape without wide gap": (forged([entry(1)], [b"\xff", *ONE[1:]]), "wide gaps, it has 0|list of wide gaps"),
    "wide gap without escape": (forged([entry(1, wide_gaps=1)], [b"\0", bytes(8), *ONE[2:]]), "list of wide gaps"),
    "escape without wide difference": (forged([entry(1)], [b"\0", b"", b"\x80", *ONE[3:]]), "list of wide ones"),
    "difference of 0": (forged([entry(1)], [b"\0", b"", b"\0", *ONE[3:]]), "changes by 0"),
    "more changes than elements": (forged([entry(601)], [bytes(601), b"", b"\1" * 601, *ONE[3:]]), "601 of the 600"),
    "no changes": (forged([entry(0)], [b""] * 7), "0 of the 600"),
    "negative counts": (forged([entry(1, wide_gaps=-1)], ONE), "impossible counts"),
    "too many wide gaps": (forged([entry(3, wide_gaps=3)], ONE), "impossible counts"),
    "a tensor twice": (forged([entry(1), entry(1)], ONE), "twice"),
    "too few streams": (forged([entry(1)], ONE[:6]), "expected 7 sizes"),
    "stream longer than the counts": (forged([entry(1)], [b"\0\0", *ONE[1:]]), "holds 2 bytes, expected 1"),
    "stream missing": (forged([entry(1)], [b"", *ONE[1:]]), "stream"),
    "bytes behind a stream": (forged([entry(1)], [], [zstd(b"\0") + b"x", *map(zstd, ONE[1:])]), "decompressed"),
    "short digest": (forged([(*entry(1)[:6], b"t")], ONE), "no sha256"),
    "unknown dtype": (forged([("w", "BF17", (600,), 1, 0, 0, b"t" * 32)], ONE), "BF17"),
    "header of wrong types": (forged([("w", 1, 2, 3, 4, 5, 6)], ONE), "header can't be read"),
}


@pytest.mark.parametrize(("payload", "message"), FORGERIES.values(), ids=FORGERIES.keys())
def test_a_forged_delta_is_refused(payload: bytes, message: str) -> None:
    model = {"w": HostTensor("BF16", (600,), memoryview(bytearray(1200)))}
    assert decode(forged([entry(1)], ONE), model).changed == 1  # the forger can write a valid one
    with pytest.raises(WeightsError, match=message):
        decode(payload, model)


def test_claimed_sizes_cost_no_memory() -> None:
    """Bombs: a quarter of a gigabyte of zeros as a stream or as the header, with and without saying so."""
    size = 1 << 28
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(size))
    model = {"w": HostTensor("BF16", (600,), memoryview(bytearray(1200)))}
    bombs = [forged([entry(1)], [], [bomb, *map(zstd, ONE[1:])]) for bomb in (zstd(bytes(size)), silent)]
    for claim in (size, 1 << 20):
        bombs += [PREFIX.pack(b"AFDELTA1", len(bomb), claim) + bomb for bomb in (zstd(bytes(size)), silent)]
    tracemalloc.start()
    try:
        for bomb in bombs:
            with pytest.raises(WeightsError):
                decode(bomb, model)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_the_densest_delta_needs_at_most_48_bytes_per_element() -> None:
    elements = 1 << 17
    model = {"w": HostTensor("F64", (elements,), memoryview(bytearray(8 * elements)))}
    wide = np.full(elements, 2**40, "<u8").view("u1").reshape(-1, 8).T.tobytes()
    one = ("w", "F64", (elements,), elements, 0, elements, b"t" * 32)
    payload = forged([one], [bytes(elements), b"", b"\x80" * elements, b"", b"", b"", wide])
    tracemalloc.start()
    try:
        update = decode(payload, model)
        assert update.changed == elements
        assert tracemalloc.get_traced_memory()[1] < 48 * elements
    finally:
        tracemalloc.stop()


def test_small_steps_cost_at_most_one_and_a_half_bytes_per_change() -> None:
    base = bf16_model(1 << 20)
    rng = np.random.default_rng(2)
    new = {}
    for name, tensor in base.items():
        bits = np.frombuffer(tensor.data, "<u2").copy()
        where = np.flatnonzero(rng.random(len(bits)) < 0.015)
        bits[where] += rng.choice(np.array([1, 0xFFFF], "<u2"), len(where))
        new[name] = HostTensor(tensor.dtype, tensor.shape, memoryview(bits.view(np.uint8)))
    delta = encoded(base, new)
    assert 0.014 < delta.changed / (1 << 20) < 0.016
    assert len(delta.payload) <= 1.2 * delta.changed
    assert pays(len(delta.payload), 2 << 20)


def test_a_delta_pays_up_to_half_a_full() -> None:
    assert pays(50, 100)
    assert not pays(51, 100)
    dense = [bf16_model(4000, seed) for seed in (0, 1)]
    assert not pays(len(encoded(*dense).payload), 8000)


@pytest.mark.parametrize("gap", [253, 254, 255, 256, 257])
def test_a_gap_at_the_escape_comes_back(gap: int) -> None:
    positions = np.array([gap, 2 * gap + 1, 2 * gap + 2])
    bytes_N, wide = split_gaps(positions)
    assert len(wide) == (2 if gap >= 255 else 0)
    assert join_gaps(bytes_N, wide, elements=2 * gap + 3).tolist() == positions.tolist()


def test_a_delta_on_other_bytes_of_the_same_version_is_named(pair: tuple[Model, EncodedDelta]) -> None:
    base, delta = pair
    other = {name: HostTensor(one.dtype, one.shape, memoryview(bytes(len(one.data)))) for name, one in base.items()}
    with pytest.raises(WeightsError, match="was made against other bytes of version 1"):
        apply(decode(delta.payload, base), shadow_of(other))


def test_a_short_frame_is_named(pair: tuple[Model, EncodedDelta]) -> None:
    base, delta = pair
    with pytest.raises(WeightsError, match="is truncated: its header has 3 of"):
        decode(delta.payload[: PREFIX.size + 3], base)
