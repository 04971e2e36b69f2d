"""The frame around a delta's numbers: a header that says what it holds, and compressed streams of known size.

Not here: what the streams mean (`delta.py`).
Invariant: what is returned was checked against the model that it is meant for, and nothing was allocated from a size
that the bytes claim and the model does not bear out. Everything else raises WeightsError.

Layout, little-endian: "AFDELTA1" | u32 header bytes | u32 header bytes uncompressed | header | streams. The header is a
msgpack pair in a zstd frame: `DeltaHeader`, and the compressed size of each stream. A stream is one zstd frame; an
empty one takes no bytes. Frames carry checksums.
"""

import itertools
import math
import struct
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import zstandard

from astraflow.errors import WeightsError
from astraflow.weights.codec.byte_coding import GAP_ESCAPE
from astraflow.weights.codec.tensors import ITEM_SIZES, HostTensor

MAGIC = b"AFDELTA1"
PREFIX = struct.Struct("<8sII")
WIDTHS = (1, 2, 4, 8)  # bytes of a wide difference
_DIGEST_BYTES = 32  # sha256
MAX_HEADER_BYTES = 32 << 20  # some 300,000 tensors


class DeltaEntry(msgspec.Struct, frozen=True, array_like=True):
    """One tensor that changes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    changed: int  # elements
    wide_gaps: int
    wide_differences: int
    digest: bytes  # sha256 of its bytes after the update


class DeltaHeader(msgspec.Struct, frozen=True, array_like=True):
    """What a delta holds. Append-only, with defaults."""

    base_version: int
    version: int
    base_digest: bytes  # model_digest
    digest: bytes
    tensors: tuple[DeltaEntry, ...]


def write_delta(header: DeltaHeader, streams: Sequence[bytes], *, level: int) -> bytes:
    """The whole payload, compressed at zstd's `level`."""
    compressor = zstandard.ZstdCompressor(level=level, write_checksum=True)
    frames = [compressor.compress(stream) if stream else b"" for stream in streams]
    return _with_header(header, [len(frame) for frame in frames], frames)


def bind_delta(payload: bytes, *, base_digest: str, digest: str) -> bytes:
    """The same delta, said to lead from one whole model to another: for a rank that has only some of its tensors."""
    view = memoryview(payload)
    (header, frame_sizes), start = _read_header(view)
    bound = msgspec.structs.replace(header, base_digest=bytes.fromhex(base_digest), digest=bytes.fromhex(digest))
    return _with_header(bound, frame_sizes, [view[start:]])


def _with_header(header: DeltaHeader, frame_sizes: Sequence[int], frames: Sequence[bytes | memoryview]) -> bytes:
    raw = msgspec.msgpack.encode((header, list(frame_sizes)))
    frame = zstandard.ZstdCompressor(level=1, write_checksum=True).compress(raw)
    return b"".join((PREFIX.pack(MAGIC, len(frame), len(raw)), frame, *frames))


def read_delta(view: memoryview, model: Mapping[str, HostTensor]) -> tuple[DeltaHeader, list[bytes]]:
    """Header and streams, each stream as long as the header's counts add up to. Raises WeightsError."""
    (header, frame_sizes), start = _read_header(view)
    for entry in header.tensors:
        _check_entry(entry, model)
    if len({entry.name for entry in header.tensors}) != len(header.tensors):
        raise WeightsError("a delta lists a tensor twice")
    return header, _read_streams(view[start:], header, frame_sizes)


def _read_header(view: memoryview) -> tuple[tuple[DeltaHeader, tuple[int, ...]], int]:
    """The header with the streams' compressed sizes, and where the streams start."""
    if len(view) < PREFIX.size:
        raise WeightsError(f"a delta of {len(view)} bytes is truncated, its prefix alone has {PREFIX.size}")
    magic, frame_bytes, header_bytes = PREFIX.unpack_from(view)
    if magic != MAGIC:
        raise WeightsError(f"a delta starts with {magic!r}, expected {MAGIC!r}; was it written by a newer release?")
    if header_bytes > MAX_HEADER_BYTES:
        raise WeightsError(f"a delta's header claims {header_bytes} bytes, at most {MAX_HEADER_BYTES} are read")
    end = PREFIX.size + frame_bytes
    raw = _decompress(view[PREFIX.size : end], frame_bytes, header_bytes, "header")
    try:
        header, frame_sizes = msgspec.msgpack.decode(raw, type=tuple[DeltaHeader, tuple[int, ...]])
    except msgspec.DecodeError as exc:
        raise WeightsError(f"a delta's header can't be read: {exc}") from exc
    if len(header.base_digest) != _DIGEST_BYTES or len(header.digest) != _DIGEST_BYTES:
        raise WeightsError("a delta's header has digests that are no sha256")
    return (header, frame_sizes), end


def _check_entry(entry: DeltaEntry, model: Mapping[str, HostTensor]) -> None:
    tensor = model.get(entry.name)
    if tensor is None:
        raise WeightsError(f"a delta changes tensor {entry.name!r}, which the model doesn't have")
    if (entry.dtype, entry.shape) != (tensor.dtype, tensor.shape):
        raise WeightsError(
            f"a delta says that tensor {entry.name} is {entry.dtype}{list(entry.shape)}, the model has "
            f"{tensor.dtype}{list(tensor.shape)}"
        )
    elements = math.prod(entry.shape)
    if not 0 < entry.changed <= elements:
        raise WeightsError(f"a delta changes {entry.changed} of the {elements} elements of {entry.name}")
    if not (0 <= entry.wide_gaps <= elements // GAP_ESCAPE and 0 <= entry.wide_differences <= entry.changed):
        raise WeightsError(f"a delta has impossible counts for tensor {entry.name} of {elements} elements")
    if len(entry.digest) != _DIGEST_BYTES:
        raise WeightsError(f"a delta has a digest for tensor {entry.name} that is no sha256")


def _read_streams(view: memoryview, header: DeltaHeader, frame_sizes: Sequence[int]) -> list[bytes]:
    expected = list(_stream_sizes(header.tensors))
    if len(frame_sizes) != len(expected) or min(frame_sizes) < 0:
        raise WeightsError(f"a delta has streams of {list(frame_sizes)} bytes, expected {len(expected)} sizes")
    if sum(frame_sizes) != len(view):
        raise WeightsError(f"a delta has {len(view)} bytes after its header, expected {sum(frame_sizes)}")
    ends = itertools.accumulate(frame_sizes)
    return [
        _decompress(view[end - size : end], size, raw_size, "stream")
        for end, size, raw_size in zip(ends, frame_sizes, expected, strict=True)
    ]


def _stream_sizes(entries: Sequence[DeltaEntry]) -> Iterator[int]:
    """Uncompressed bytes of each stream, in the order that `delta.py` writes them."""
    changed = sum(entry.changed for entry in entries)
    yield changed
    yield 8 * sum(entry.wide_gaps for entry in entries)
    yield changed
    for width in WIDTHS:
        yield width * sum(entry.wide_differences for entry in entries if ITEM_SIZES[entry.dtype] == width)


def _decompress(frame: memoryview, size: int, raw_size: int, what: str) -> bytes:
    """A zstd frame of exactly `size` bytes that says it holds exactly `raw_size`; nothing else is decompressed."""
    if len(frame) != size:
        raise WeightsError(f"a delta is truncated: its {what} has {len(frame)} of {size} bytes")
    if not size and not raw_size:
        return b""
    try:
        claimed = zstandard.frame_content_size(frame)
        if claimed != raw_size:
            raise WeightsError(f"a delta's {what} holds {claimed} bytes, expected {raw_size}")
        raw = zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as exc:
        raise WeightsError(f"a delta's {what} can't be decompressed: {exc}") from exc
    if len(raw) != raw_size:
        raise WeightsError(f"a delta's {what} holds {len(raw)} bytes, expected {raw_size}")
    return raw
