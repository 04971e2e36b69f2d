"""The cheapest way from what a replica has to the head: a chain of deltas, or the newest full and the deltas since.

Pure but for reading manifests through a function. It fetches no parts.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from astraflow.errors import WeightsError
from astraflow.messages import Head, Manifest, VersionKind

_ReadManifest = Callable[[int], Awaitable[Manifest | None]]  # by sequence in the log; None: it is gone


@dataclass(frozen=True, kw_only=True)
class Path:
    """Perhaps a full first, then deltas, oldest first."""

    full: Manifest | None
    deltas: tuple[Manifest, ...]

    @property
    def size_bytes(self) -> int:
        """Of all payloads."""
        return sum(manifest.size_bytes for manifest in (self.full, *self.deltas) if manifest is not None)


async def plan(head: Head, have: int | None, read: _ReadManifest) -> Path:
    """The path with the fewest bytes. Args: have: the version to start from; None: nothing.

    Raises: WeightsError if manifests are gone on every path, or aren't of the head's policy.
    """
    full = await _read(head.full_manifest_sequence, head, read)
    paths: list[Path] = []
    deltas: list[Manifest] = []
    sequence = head.manifest_sequence
    while True:
        version = deltas[0].base_version if deltas else head.version
        if have is not None and version == have:
            paths.append(Path(full=None, deltas=tuple(deltas)))
        if full is not None and version == full.version:
            paths.append(Path(full=full, deltas=tuple(deltas)))
        least = min((path.size_bytes for path in paths), default=None)
        if (paths and (have is None or version <= have)) or (least is not None and _size(deltas) >= least):
            break
        manifest = await _read(sequence, head, read)
        if manifest is None or manifest.kind is VersionKind.FULL:
            break
        if manifest.version != version or manifest.base_version >= version:
            raise WeightsError(f"the manifest at {sequence} is of version {manifest.version}, expected {version}")
        deltas.insert(0, manifest)
        sequence = manifest.base_sequence
    if not paths:
        raise WeightsError(
            f"no full and no chain of deltas leads to version {head.version} of {head.policy}: the manifest at "
            f"{head.full_manifest_sequence if full is None else sequence} is gone"
        )
    return min(paths, key=lambda path: path.size_bytes)


def _size(deltas: list[Manifest]) -> int:
    return sum(manifest.size_bytes for manifest in deltas)


async def _read(sequence: int, head: Head, read: _ReadManifest) -> Manifest | None:
    manifest = await read(sequence)
    if manifest is not None and manifest.policy != head.policy:
        raise WeightsError(f"the manifest at {sequence} is of policy {manifest.policy!r}, expected {head.policy!r}")
    return manifest
