"""Keys that one lease's holder writes: what an older holder sends late never wins."""

import pytest

from astraflow.actors.base.owned_key import OwnedKey, seal
from astraflow.bus import Bus, wiring
from astraflow.errors import FencedError
from astraflow.messages import Head, Ledger, Progress

KEY = "head.solver"


def head(version: int, epoch: int) -> Head:
    return Head(
        policy="solver",
        version=version,
        step=version,
        batch=version,
        epoch=epoch,
        manifest_sequence=1,
        full_manifest_sequence=1,
    )


def progress(consumed: int, epoch: int) -> Progress:
    return Progress(policy="solver", consumed=consumed, step=consumed, version=consumed, epoch=epoch)


async def test_after_a_seal_the_older_holders_compare_and_set_fails(bus: Bus) -> None:
    revision = await bus.kv.put(KEY, head(3, epoch=1))

    value, sealed = await seal(bus, KEY, Head, epoch=2)

    assert value == head(3, epoch=2)
    with pytest.raises(FencedError):
        await bus.kv.put(KEY, head(4, epoch=1), expected_revision=revision)
    await bus.kv.put(KEY, head(4, epoch=2), expected_revision=sealed)


async def test_a_seal_of_an_older_epoch_is_refused_and_of_the_same_changes_nothing(bus: Bus) -> None:
    revision = await bus.kv.put(KEY, head(3, epoch=2))
    assert await seal(bus, KEY, Head, epoch=2) == (head(3, epoch=2), revision)
    with pytest.raises(FencedError, match=r"head\.solver has lease epoch 2, this process has 1"):
        await seal(bus, KEY, Head, epoch=1)


async def test_there_is_nothing_to_seal_in_an_absent_key(bus: Bus) -> None:
    assert await seal(bus, KEY, Head, epoch=2) == (None, 0)


async def test_a_value_of_an_older_epoch_is_overwritten_and_one_of_a_newer_fences(bus: Bus) -> None:
    old, new = OwnedKey(bus, wiring.PROGRESS.key("solver")), OwnedKey(bus, wiring.PROGRESS.key("solver"))
    await old.put(progress(5, epoch=1))
    await new.put(progress(3, epoch=2))
    with pytest.raises(FencedError, match="was replaced"):
        await old.put(progress(6, epoch=1))
    await new.put(progress(4, epoch=2))
    entry = await bus.kv.get(wiring.PROGRESS.key("solver"))
    assert entry is not None
    assert entry.message == progress(4, epoch=2)


async def test_somebody_who_edits_a_value_does_not_fence_its_owner(bus: Bus) -> None:
    owner = OwnedKey(bus, wiring.LEDGER.key("solver"))
    await owner.put(Ledger(policy="solver", counts={"issued": 1}, epoch=3))
    await bus.kv.put(wiring.LEDGER.key("solver"), Ledger(policy="solver", counts={}, epoch=3))
    await owner.put(Ledger(policy="solver", counts={"issued": 2}, epoch=3))
    entry = await bus.kv.get(wiring.LEDGER.key("solver"))
    assert entry is not None
    assert entry.message.counts == {"issued": 2}
