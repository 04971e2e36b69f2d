"""The versions that a run's logs hold: what they are, whether every byte of them is right, and one as a model folder.

It reads only, with rights that everybody has, and needs no torch. Invariant: an exported folder is whole or not there.
"""

import asyncio
import math
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from astraflow import clock
from astraflow.bus import Bus, wiring
from astraflow.errors import ConfigError, MessageError, WeightsError
from astraflow.messages import Head, Manifest, VersionKind
from astraflow.models.folder import write_model
from astraflow.weights.codec.tensors import HostTensor
from astraflow.weights.transfer.follower import WeightFollower
from astraflow.weights.transfer.payload_reader import PayloadReader


@dataclass(frozen=True, kw_only=True)
class Retained:
    """A version that the log holds.

    Attributes:
        sequence: of its manifest.
        full: of the full that it can be built from; None if that is gone, or a version between.
        elements: of the whole model; 0 if no full is there to tell.
    """

    manifest: Manifest
    sequence: int
    published_at: float  # unix seconds, by the clock of who looks
    full: int | None
    elements: int

    @property
    def sparsity(self) -> float | None:
        """Share of the elements that changed; None for a full, and where nobody told."""
        changed = self.manifest.changed_elements
        return changed / self.elements if changed >= 0 and self.elements else None

    @property
    def places(self) -> list[str]:
        """Where its payload is."""
        return [place.transport for place in self.manifest.places] + ["nats"] * self.manifest.parts_stored

    def head(self) -> Head:
        """As if this version were the newest. Raises WeightsError if what it is built from is gone."""
        if self.full is None:
            raise WeightsError(f"version {self.manifest.version} can't be built: the full before it is gone")
        manifest = self.manifest
        return Head(
            policy=manifest.policy,
            version=manifest.version,
            step=manifest.step,
            epoch=manifest.epoch,
            manifest_sequence=self.sequence,
            full_manifest_sequence=self.full,
            batch=manifest.batch,
        )


async def head_of(bus: Bus, policy: str) -> Head | None:
    """The policy's head; None if nothing was published yet."""
    entry = await bus.kv.get(wiring.HEAD.key(policy))
    return entry.message if entry is not None and isinstance(entry.message, Head) else None


async def retained(bus: Bus, policy: str) -> list[Retained]:
    """Every version whose manifest the policy's log holds, oldest first; one with delta and full is there twice."""
    stream, subject = bus.topology.weights(policy), bus.topology.manifest(policy)
    found: list[Retained] = []
    built: dict[int, tuple[int, int]] = {}  # version → (sequence of its newest full, elements of the model)
    sequence = (await bus.logs.state(stream)).first_sequence
    while (entry := await bus.logs.next(stream, subject, start=sequence)) is not None:
        sequence, manifest = entry.sequence + 1, entry.message
        assert isinstance(manifest, Manifest), "admitted as one"
        if manifest.kind is VersionKind.FULL:
            built[manifest.version] = (entry.sequence, sum(math.prod(tensor.shape) for tensor in manifest.tensors))
        elif manifest.base_version in built:
            built[manifest.version] = built[manifest.base_version]
        full, elements = built.get(manifest.version, (None, 0))
        at = clock.wall() - entry.age_s
        found.append(
            Retained(manifest=manifest, sequence=entry.sequence, published_at=at, full=full, elements=elements)
        )
    return found


async def fault_of_newest(bus: Bus, policy: str) -> str:
    """Why a newcomer can't load the newest version; "" if it can, or nothing was published yet. Reads all of it."""
    head, follower = await head_of(bus, policy), WeightFollower(bus, policy)
    try:
        if head is not None:
            await follower.files(head)
            await follower.advance(head)
    except (WeightsError, MessageError) as exc:
        return str(exc)
    return ""


def chosen(versions: Sequence[Retained], number: int | None, *, policy: str) -> Retained:
    """The newest one with that number, or the newest of all. Raises ConfigError if there is none."""
    for each in reversed(versions):
        if number in (None, each.manifest.version):
            return each
    known = ", ".join(dict.fromkeys(str(each.manifest.version) for each in versions)) or "none"
    raise ConfigError(f"version {number} of {policy} isn't retained; there are {known}")


async def verify(bus: Bus, policy: str, versions: Sequence[Retained]) -> AsyncIterator[tuple[Retained, list[str]]]:
    """Each version with what is wrong with it: every copy of its parts, its files, and the tensors that it makes."""
    follower, reader = WeightFollower(bus, policy), PayloadReader(bus, policy)
    for each in versions:
        faults: list[str] = []
        if each.manifest.places:
            faults += [fault for fault in (await reader.copies(each.manifest)).values() if fault]
        try:
            head = each.head()
            if is_full := each.manifest.kind is VersionKind.FULL:
                await follower.files(head)
            await follower.advance(head, afresh=is_full, exactly=True)
        except (WeightsError, MessageError) as exc:
            follower = WeightFollower(bus, policy)
            faults.append(str(exc))
        yield each, list(dict.fromkeys(faults))


async def export(bus: Bus, version: Retained, target: Path) -> None:
    """Write a version as a Hugging Face folder. Raises WeightsError; ConfigError if `target` is there or can't be."""
    follower, head = WeightFollower(bus, version.manifest.policy), version.head()
    files = await follower.files(head)
    await follower.advance(head, exactly=True)
    assert follower.shadow is not None
    try:
        await asyncio.to_thread(_write, target, files, follower.shadow.tensors)
    except OSError as exc:
        raise ConfigError(f"{target} can't be written: {exc.strerror or exc}") from exc


def _write(target: Path, files: Mapping[str, bytes], tensors: Mapping[str, HostTensor]) -> None:
    if target.exists():
        raise ConfigError(f"{target} exists; export into a new folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as work:
        whole = Path(work) / "model"
        whole.mkdir()
        write_model(whole, files, tensors)
        whole.rename(target)
