"""Versions in the log, read back: an exported one is a model that transformers loads, with the trainer's bits."""

from pathlib import Path

import numpy as np
import pytest

from astraflow.bus.memory import MemoryServer
from astraflow.errors import ConfigError
from astraflow.models.folder import read_model
from astraflow.models.tiny import prepare_tiny
from astraflow.weights.codec.tensors import HostTensor
from astraflow.weights.transfer.catalog import chosen, export, retained, verify
from astraflow.weights.transfer.publisher import WeightPublisher
from tests.actors.contexts import context
from tests.weights.test_publish_and_follow import head_of, publish


def moved(tensors: dict[str, HostTensor]) -> dict[str, HostTensor]:
    """A few elements of each tensor are other ones."""
    new = {}
    for name, tensor in tensors.items():
        bits = np.frombuffer(bytes(tensor.data), np.uint8).copy()
        bits[::997] ^= 1
        new[name] = HostTensor(tensor.dtype, tensor.shape, bits.data)
    return new


@pytest.mark.slow
async def test_any_retained_version_is_exported_as_a_model_that_transformers_loads(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    files, first = read_model(prepare_tiny("reverse"))
    versions = [first, moved(first)]
    async with context(memory_server, tmp_path, role="trainer") as ctx:
        publisher = WeightPublisher(ctx, full_every=50)
        for number, tensors in enumerate(versions):
            await publisher.publish(tensors, files, version=number, step=number, batch=number)
        found = await retained(ctx.bus, "solver")
        assert [each.manifest.version for each in found] == [0, 1]
        for each, tensors in zip(found, versions, strict=True):
            folder = tmp_path / f"model-{each.manifest.version}"
            await export(ctx.bus, each, folder)
            assert {n: bytes(t.data) for n, t in read_model(folder)[1].items()} == {
                n: bytes(t.data) for n, t in tensors.items()
            }
            state = AutoModelForCausalLM.from_pretrained(folder).state_dict()
            for name, tensor in tensors.items():
                assert state[name].numpy().tobytes() == bytes(tensor.data)
            assert AutoTokenizer.from_pretrained(folder).encode("12345")
        with pytest.raises(ConfigError, match="exists"):
            await export(ctx.bus, found[0], folder)


async def test_what_is_lost_or_damaged_in_the_log_is_named_version_by_version(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with context(memory_server, tmp_path, role="trainer") as ctx:
        await publish(WeightPublisher(ctx, full_every=3), 0, 7)  # fulls 0, 3, 6; 3 to 7 are kept, 6 as delta too
        found = await retained(ctx.bus, "solver")
        assert [each.manifest.version for each in found] == [3, 4, 5, 6, 6, 7]
        assert [each.sparsity is None for each in found] == [True, False, False, False, True, False]
        assert 0.005 < (found[1].sparsity or 0) < 0.02
        assert [(each.manifest.version, faults) async for each, faults in verify(ctx.bus, "solver", found)] == [
            (number, []) for number in (3, 4, 5, 6, 6, 7)
        ]
        stream, head = ctx.bus.topology.weights("solver"), await head_of(ctx.bus)
        part = f"{ctx.bus.topology.weight_part('solver', 0)}.{found[1].manifest.parts[0].digest}"
        await ctx.bus.logs.purge(stream, below_sequence=head.manifest_sequence, subject=part)
        faults = {each.manifest.version: faults async for each, faults in verify(ctx.bus, "solver", found)}
        assert [bool(faults[number]) for number in range(3, 8)] == [False, True, True, False, False]
        assert "purged or never sent" in faults[4][0]
        with pytest.raises(ConfigError, match="version 1 of solver isn't retained; there are 3, 4, 5, 6, 7"):
            chosen(found, 1, policy="solver")
        await ctx.bus.logs.purge(stream, below_sequence=found[1].sequence, subject=ctx.bus.topology.manifest("solver"))
        found = await retained(ctx.bus, "solver")
        assert [each.full is None for each in found] == [True, True, True, False, False]
        faults = {each.manifest.version: faults async for each, faults in verify(ctx.bus, "solver", found)}
        assert faults[4] == ["version 4 can't be built: the full before it is gone"]
