"""An update is applied whole, once and to its own base, or not at all."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from astraflow.errors import WeightsError
from astraflow.weights.codec.differences import SparseUpdate, difference
from astraflow.weights.codec.host_copy import HostCopy, apply, apply_chain
from astraflow.weights.codec.tensors import HostTensor
from tests.weights.delta_models import bf16_model, bytes_of, changed_tensor, digests_of

Model = dict[str, HostTensor]


@pytest.fixture
def base() -> Model:
    return bf16_model(4000)


@pytest.fixture
def new(base: Model) -> Model:
    return {name: changed_tensor(tensor, 0.02, 1) for name, tensor in base.items()}


@pytest.fixture
def update(base: Model, new: Model) -> SparseUpdate:
    return difference(base, new, base_version=1, version=2, base_digests=digests_of(base))


def refused(update: SparseUpdate, shadow: HostCopy, message: str) -> None:
    before = (shadow.version, shadow.digest, dict(shadow.digests), bytes_of(shadow.tensors))
    with pytest.raises(WeightsError, match=message):
        apply(update, shadow)
    assert (shadow.version, shadow.digest, dict(shadow.digests), bytes_of(shadow.tensors)) == before


def test_an_update_is_refused_the_second_time(base: Model, new: Model, update: SparseUpdate) -> None:
    shadow = HostCopy.copy_of(1, base, digests_of(base))
    apply(update, shadow)
    refused(update, shadow, "from version 1 to 2, which it has, does not apply to version 2")
    assert bytes_of(shadow.tensors) == bytes_of(new)


def test_other_bytes_under_the_base_version_are_refused(update: SparseUpdate) -> None:
    other = bf16_model(4000, seed=9)
    refused(update, HostCopy.copy_of(1, other, digests_of(other)), "made against other bytes of version 1")


def test_another_model_is_refused(base: Model, update: SparseUpdate) -> None:
    digests = digests_of(base)
    part = {"embed.weight": base["embed.weight"]}
    refused(update, HostCopy.copy_of(1, part, digests), "'norm.weight', which the model doesn't have")
    reshaped = {**base, "norm.weight": HostTensor("BF16", (2, 500), base["norm.weight"].data)}
    refused(update, HostCopy.copy_of(1, reshaped, digests), r"BF16\[1000\], the model has BF16\[2, 500\]")


def test_a_base_that_rotted_in_memory_is_found_and_left_as_it_was(base: Model, update: SparseUpdate) -> None:
    shadow = HostCopy.copy_of(1, base, digests_of(base))
    untouched = int(np.setdiff1d(np.arange(1000), update.tensors["norm.weight"].positions)[0])
    shadow.tensors["norm.weight"].data[2 * untouched] ^= 1  # after embed.weight, which is applied first
    refused(update, shadow, r"norm\.weight of version 2 does not match its digest")


def test_a_wrong_difference_is_undone_in_all_tensors(base: Model, update: SparseUpdate) -> None:
    last = update.tensors["norm.weight"]
    differences = last.differences.copy()
    differences[-1] += 1
    wrong = replace(update, tensors={**update.tensors, "norm.weight": replace(last, differences=differences)})
    refused(wrong, HostCopy.copy_of(1, base, digests_of(base)), r"norm\.weight of version 2 does not match")


def test_digests_that_contradict_each_other_are_refused(base: Model, update: SparseUpdate) -> None:
    shadow = HostCopy.copy_of(1, base, digests_of(base))
    refused(replace(update, digest="0" * 64), shadow, "contradict")


def test_a_shadow_needs_writable_memory_and_all_digests(base: Model) -> None:
    frozen = {name: HostTensor(t.dtype, t.shape, memoryview(bytes(t.data))) for name, t in base.items()}
    with pytest.raises(WeightsError, match="read-only memory"):
        HostCopy(1, frozen, digests_of(base))
    with pytest.raises(WeightsError, match="has no digest"):
        HostCopy(1, base, {})


def test_a_copied_shadow_does_not_share_memory(base: Model, new: Model, update: SparseUpdate) -> None:
    before = bytes_of(base)
    shadow = HostCopy.copy_of(1, base, digests_of(base))
    apply(update, shadow)
    assert bytes_of(base) == before
    assert bytes_of(shadow.tensors) == bytes_of(new)


def test_an_empty_update_moves_the_version(base: Model) -> None:
    digests = digests_of(base)
    shadow = HostCopy.copy_of(1, base, digests)
    apply(difference(base, base, base_version=1, version=2, base_digests=digests), shadow)
    assert (shadow.version, shadow.digests) == (2, digests)


def chain_of(versions: list[Model]) -> list[SparseUpdate]:
    return [
        difference(before, after, base_version=i, version=i + 1, base_digests=digests_of(before))
        for i, (before, after) in enumerate(itertools.pairwise(versions))
    ]


@pytest.fixture
def versions(base: Model) -> list[Model]:
    chain = [base]
    for seed in range(3):
        chain.append({name: changed_tensor(tensor, 0.2, seed) for name, tensor in chain[-1].items()})
    return chain


def test_a_chain_is_applied_whole(versions: list[Model]) -> None:
    shadow = HostCopy.copy_of(0, versions[0], digests_of(versions[0]))
    apply_chain(chain_of(versions), shadow)
    assert bytes_of(shadow.tensors) == bytes_of(versions[-1])
    assert (shadow.version, shadow.digests) == (3, digests_of(versions[-1]))


def test_one_wrong_link_undoes_the_whole_chain(versions: list[Model]) -> None:
    chain = chain_of(versions)
    middle = chain[1].tensors["norm.weight"]
    wrong = replace(middle, differences=middle.differences + np.uint16(1))
    broken = [chain[0], replace(chain[1], tensors={**chain[1].tensors, "norm.weight": wrong}), chain[2]]
    shadow = HostCopy.copy_of(0, versions[0], digests_of(versions[0]))
    with pytest.raises(WeightsError, match=r"norm\.weight of version 3 does not match"):
        apply_chain(broken, shadow)
    assert (shadow.version, bytes_of(shadow.tensors)) == (0, bytes_of(versions[0]))
    with pytest.raises(WeightsError, match=r"to version 1 .* followed by one from 2"):
        apply_chain([chain[0], chain[2]], shadow)
    with pytest.raises(WeightsError, match="chain of no updates"):
        apply_chain([], shadow)
    foreign = replace(chain[2], tensors={**chain[2].tensors, "lm_head.weight": middle})
    with pytest.raises(WeightsError, match=r"version 3 changes tensor 'lm_head\.weight', which the model doesn't have"):
        apply_chain([*chain[:2], foreign], shadow)
    assert (shadow.version, bytes_of(shadow.tensors)) == (0, bytes_of(versions[0]))
