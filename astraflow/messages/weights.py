"""Weight versions: parts, then a manifest, then the KV head."""

from enum import StrEnum

import msgspec

from astraflow.messages.message import Message


class PartRef(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a byte stream, found by its digest."""

    digest: str  # sha256 hex
    size_bytes: int


class TensorEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of a version, in the model's own (Hugging Face) name."""

    name: str
    dtype: str  # safetensors name: F32, F16, BF16, …
    shape: tuple[int, ...]
    digest: str  # sha256 hex of its bytes
    offset_bytes: int = 0  # where its bytes start in a full's payload


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A small file that belongs to the model: config.json, tokenizer.json, chat template."""

    name: str
    digest: str
    size_bytes: int
    parts: tuple[PartRef, ...]


class VersionKind(StrEnum):
    FULL = "full"
    DELTA = "delta"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where the payload of a full can be read whole, besides the log."""

    transport: str  # file, http
    address: str  # absolute path of a file; URL
    token: str = ""  # http: what the server asks for
    certificate: str = ""  # http: PEM by which the server proves itself; "" = the URL is http://


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """What these weights make of a row of tokens, by whoever published them."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]  # of the last tokens of the row, at temperature 1
    dtype: str  # float32 | bfloat16: computed in


class Manifest(Message, frozen=True, kw_only=True):
    """Everything needed to load one version. Subject weights.<policy>.manifest."""

    policy: str
    version: int
    step: int  # optimizer steps behind this version
    batch: int  # number of the last batch that it was trained on
    epoch: int  # lease epoch of the trainer that published it
    kind: VersionKind
    tensors: tuple[TensorEntry, ...]  # of a delta: those that changed
    parts: tuple[PartRef, ...]  # concatenated they are the payload
    size_bytes: int
    base_version: int = -1  # of a delta; -1 for a full
    files: tuple[FileEntry, ...] = ()
    sequence_first: int = 0  # stream sequence of the first part, a hint for readers
    base_sequence: int = 0  # of a delta: sequence of its base's manifest, so that a chain can be walked back
    places: tuple[Place, ...] = ()  # where else the payload is; readers try them in this order, then the log
    parts_stored: bool = True  # False: the parts only say what the payload must be, the log doesn't hold them
    changed_elements: int = -1  # of a delta: elements that differ from its base; -1 = not told
    pieces: tuple[int, ...] = ()  # bytes of each rank's piece of the payload; () = one piece
    probe: Probe | None = None  # None: not computed (toys, publishers of before)


class VersionStep(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    step: int


class Head(Message, frozen=True, kw_only=True):
    """The newest loadable version. KV key head.<policy>, written last, by compare-and-set."""

    policy: str
    version: int
    step: int
    epoch: int
    manifest_sequence: int  # in the WEIGHTS log
    full_manifest_sequence: int  # newest full that the head's chain starts from
    recent: tuple[VersionStep, ...] = ()  # the last versions, so that version → step can be looked up
    finished: bool = False  # no newer version will come
    batch: int = 0  # number of the last batch behind this version
    ready_s: float = 0.0  # how long the weights had been there when this was written
