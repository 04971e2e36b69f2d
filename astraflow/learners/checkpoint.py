"""A learner's state on disk: a safetensors file of each rank, and a small JSON that vouches for them.

    learner.safetensors, learner-00001.safetensors, …    each rank's pieces; the header says where each of them lies
    learner.json                                         written last, with size and digest of every file

Any other number of ranks, or another way of cutting tensors, reads it back: a rank reads what overlaps with its pieces.
Not here: temporary folders, renames, cursors; the trainer actor writes those around it. No pickle anywhere.
Invariant: what `read_state` returns is bit for bit what `write_state` was given, or it raises, on all ranks.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from astraflow.errors import WeightsError
from astraflow.learners.durable import sync, write_durably
from astraflow.learners.ranks.placement import Block, block_of, local, speaks_for
from astraflow.learners.team import Team

_RECORD_FILE = "learner.json"
FORMAT = 2

Like = Callable[[str, tuple[int, ...]], Tensor | None]
"""(name, shape) → a tensor that is cut as that one must be; None: it isn't cut."""


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rank's."""

    name: str
    size_bytes: int
    sha256: str


class _StateRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the tensors are. There is no random state: a step draws nothing, and dithering is over once it is saved."""

    format: int
    steps: int  # optimizer steps behind the state
    files: tuple[_File, ...] = ()
    digest: str = ""  # format 1 only: of one file's names, shapes and bytes


def write_state(folder: Path, tensors: Mapping[str, Tensor], *, steps: int, team: Team) -> None:
    """Write and fsync this rank's file; the lead writes the record when all have theirs. The folder exists.

    Raises: OSError if a rank's file can't be written, on every rank.
    """
    problem, entry = "", _File(name=_file_name(team.rank), size_bytes=0, sha256="")
    try:
        _write_own(folder / entry.name, tensors, team.rank)
        entry = _described(folder / entry.name)
    except (OSError, safetensors.SafetensorError) as exc:
        problem, number = str(exc), getattr(exc, "errno", None)
        if team.size == 1:
            raise
        problem = f"{number or 0} {problem}"
    found = team.exchange(msgspec.json.encode((problem, entry)))
    answers = [msgspec.json.decode(data, type=tuple[str, _File]) for data in found]
    for rank, (text, _) in enumerate(answers):
        if text:
            number, _, why = text.partition(" ")
            raise OSError(int(number), f"rank {rank}: {why}")
    if team.rank == 0:
        state = _StateRecord(format=FORMAT, steps=steps, files=tuple(file for _, file in answers))
        write_durably(folder / _RECORD_FILE, msgspec.json.format(msgspec.json.encode(state)))


def read_state(folder: Path, *, like: Like, team: Team) -> tuple[dict[str, Tensor], int]:
    """The tensors, cut as `like` says, and the step count.

    Raises: WeightsError for files that are missing, damaged or too new, on every rank.
    """
    problem = ""
    found: tuple[dict[str, Tensor], int] = {}, 0
    try:
        found = _read(folder, like, team)
    except WeightsError as exc:
        problem = str(exc)
    for text in team.exchange(problem.encode()):
        if text:
            raise WeightsError(text.decode())
    return found


def _file_name(rank: int) -> str:
    return f"learner-{rank:05d}.safetensors" if rank else "learner.safetensors"


def _write_own(path: Path, tensors: Mapping[str, Tensor], rank: int) -> None:
    own, where = {}, {}
    for name, tensor in tensors.items():
        piece = local(tensor).detach()
        if speaks_for(tensor, rank) and (piece.numel() or not tensor.numel()):
            own[name] = piece.cpu().contiguous()
            where[name] = (tuple(tensor.shape), block_of(tensor).offset)
    safetensors.torch.save_file(own, path, metadata={"pieces": json.dumps(where)})
    sync(path)


def _described(path: Path) -> _File:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return _File(name=path.name, size_bytes=path.stat().st_size, sha256=digest)


def _read(folder: Path, like: Like, team: Team) -> tuple[dict[str, Tensor], int]:
    try:
        record = msgspec.json.decode((folder / _RECORD_FILE).read_bytes(), type=_StateRecord)
        if record.format > FORMAT:
            raise WeightsError(
                f"learner state in {folder} has format {record.format}, this version reads up to {FORMAT}"
            )
        _verify(folder, record, team)
        names = [file.name for file in record.files] or [_file_name(0)]
        return _cut([safetensors.safe_open(folder / name, "pt") for name in names], like), record.steps
    except (OSError, ValueError, KeyError, safetensors.SafetensorError) as exc:  # msgspec's errors are ValueErrors
        raise WeightsError(f"learner state in {folder} can't be read: {exc}; use an older checkpoint") from exc


def _verify(folder: Path, record: _StateRecord, team: Team) -> None:
    """Each rank hashes some of the files. Raises WeightsError."""
    whole = True
    for number, file in enumerate(record.files):
        if number % team.size == team.rank:
            whole = whole and _described(folder / file.name) == file
    if not record.files:
        whole = _digest_of_one(safetensors.torch.load_file(folder / _file_name(0))) == record.digest
    if not whole:
        raise WeightsError(f"learner state in {folder} doesn't match its digest; use an older checkpoint")


def _cut(files: list[Any], like: Like) -> dict[str, Tensor]:
    """This rank's pieces. Raises WeightsError if the files don't cover them."""
    pieces: dict[str, list[tuple[tuple[int, ...], tuple[int, ...], Any]]] = {}
    for file in files:
        told = json.loads((file.metadata() or {}).get("pieces", "{}"))
        for name in file.keys():  # noqa: SIM118 - no mapping
            shape = tuple(file.get_slice(name).get_shape())
            whole, offset = told.get(name, (shape, (0,) * len(shape)))
            pieces.setdefault(name, []).append((tuple(whole), tuple(offset), file))
    tensors = {}
    with torch.no_grad():
        for name, sources in pieces.items():
            whole, first = sources[0][0], sources[0][2].get_slice(name)
            model, dtype = like(name, whole), _dtype_of(first)
            tensor = torch.empty(whole, dtype=dtype) if model is None else torch.empty_like(model, dtype=dtype)
            target, block, covered = local(tensor), block_of(tensor), 0
            for _, offset, file in sources:
                covered += _copy_overlap(target, block, offset, file, name)
            if covered != target.numel():
                raise WeightsError(f"{name} is incomplete in the learner state: {covered} of {target.numel()} elements")
            tensors[name] = tensor
    return tensors


def _dtype_of(part: Any) -> torch.dtype:
    names = {"F32": torch.float32, "BF16": torch.bfloat16, "F64": torch.float64, "I64": torch.int64, "U8": torch.uint8}
    return names[part.get_dtype()]


def _copy_overlap(target: Tensor, block: Block, offset: tuple[int, ...], file: Any, name: str) -> int:
    """What of one file's piece this rank's block has; returns its elements."""
    part = file.get_slice(name)
    shape = part.get_shape()
    if not shape:
        target.copy_(file.get_tensor(name))
        return 1
    low = [max(a, b) for a, b in zip(offset, block.offset, strict=True)]
    high = [min(a + m, b + n) for a, m, b, n in zip(offset, shape, block.offset, block.shape, strict=True)]
    if any(a >= b for a, b in zip(low, high, strict=True)):
        return 0
    source: Tensor = part[tuple(slice(a - f, b - f) for a, b, f in zip(low, high, offset, strict=True))]
    target[tuple(slice(a - o, b - o) for a, b, o in zip(low, high, block.offset, strict=True))].copy_(source)
    return source.numel()


def _digest_of_one(tensors: Mapping[str, Tensor]) -> str:
    """Of format 1, which had one file and no digest of it."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
