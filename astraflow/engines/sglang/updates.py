"""How weights get into a server, by the cheapest way that it allows.

    delta     changed elements, written into the server's own parameters by a module that it has loaded (serverside/)
    disk      whole changed tensors as safetensors in a folder that the server sees too
    tensors   whole changed tensors in the request

The way is chosen once, when a server is taken. It doesn't pause the server (`engine.py`).
Invariant: `prepare` reads the changes and nothing else does, so that they may change as soon as it has returned.
"""

import asyncio
import base64
import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from astraflow.engines.sglang.client import Client
from astraflow.engines.sglang.update_file import write_update
from astraflow.errors import EngineError, NotSharedError, WeightsError
from astraflow.models.folder import write_model
from astraflow.weights.codec.changes import Change
from astraflow.weights.codec.tensors import HostTensor

WITHIN_S = 600.0  # of one update: a server that needs longer hangs
APPLY = "astraflow_sglang.apply_update"
DESCRIBE = "astraflow_sglang.describe"
_TARGET = {"selector": "target"}  # not a draft model: it would answer in the place of the policy's
_REQUEST_BYTES = 1 << 28  # of whole tensors per request


class Way(Protocol):
    """One way into one server."""

    name: str

    def takes_elements(self, name: str) -> bool:
        """Whether changed elements of this tensor will do."""
        ...

    def prepare(self, changes: Mapping[str, Change]) -> Any:
        """What `send` needs; blocking, beside decoding."""
        ...

    async def send(self, prepared: Any, *, flush: bool) -> None:
        """Put it in place in a server that is paused, without a name for the version.

        Raises: EngineError, and then the server may serve a mix.
        """
        ...


class _Session:
    """Updates from tensors, which SGLang takes between a begin and an end."""

    def __init__(self, client: Client, ranks: int) -> None:
        self._client = client
        self._ranks = ranks

    async def update(self, payloads: list[str], *, load_format: str = "", flush: bool = False) -> None:
        """What fails in the middle leaves the session open: the engine ends then, and whoever attaches next ends it."""
        await self._client.post("/begin_weight_update", _TARGET, within_s=WITHIN_S)
        for number, payload in enumerate(payloads, start=1):
            flush_now = flush and number == len(payloads)
            body = {"serialized_named_tensors": [payload] * self._ranks, "flush_cache": flush_now, **_TARGET}
            if load_format:
                body["load_format"] = load_format
            await self._client.post("/update_weights_from_tensor", body, within_s=WITHIN_S)
        await self._client.post("/end_weight_update", {}, within_s=WITHIN_S)


class DeltaWay:
    """By the module in the server. Args: folder: where the server reads and writes too; whole: see `untraceable`."""

    name = "delta"

    def __init__(self, client: Client, ranks: int, folder: Path, whole: frozenset[str]) -> None:
        self._client = client
        self._session = _Session(client, ranks)
        self._ranks = ranks
        self._folder = folder
        self._whole = whole

    def takes_elements(self, name: str) -> bool:
        return name not in self._whole

    def prepare(self, changes: Mapping[str, Change]) -> str:
        path, reply = self._folder / "update", self._folder / "applied"
        write_update(path, changes)
        return _pickled([("path", _text(path)), ("reply", _text(reply))])

    async def send(self, prepared: str, *, flush: bool) -> None:
        try:
            await self._session.update([prepared], load_format=APPLY, flush=flush)
            for answer in _answers(self._folder / "applied", self._ranks):
                if answer.get("state") != "applied":
                    raise EngineError(f"the server did not apply new weights: {answer.get('reason')}")
        finally:
            (self._folder / "update").unlink(missing_ok=True)


async def untraceable(client: Client, ranks: int, folder: Path, tensors: Mapping[str, HostTensor]) -> frozenset[str]:
    """Names whose changes a server with our module wants whole; it looks for itself in its own memory.

    Raises: EngineError if there is no such module, or the folder isn't the server's too; WeightsError if the server's
        model has no place for a tensor.
    """
    described = json.dumps({name: [tensor.dtype, list(tensor.shape)] for name, tensor in tensors.items()})
    payload = await asyncio.to_thread(_asking, described, folder / "described")  # imports torch, which takes seconds
    await _Session(client, ranks).update([payload], load_format=DESCRIBE)
    whole: set[str] = set()
    used: set[str] = set()
    for answer in _answers(folder / "described", ranks):
        if "reason" in answer:
            raise EngineError(f"the server can't say how its weights are changed: {answer['reason']}")
        if answer["refused"]:
            name, why = next(iter(answer["refused"].items()))
            raise WeightsError(f"the server's model doesn't take tensor {name!r}: {why}")
        whole |= set(answer["untraceable"])
        used |= {*answer["traceable"], *answer["untraceable"]}
    if unused := sorted(set(tensors) - used):
        raise WeightsError(f"the server's model has no place for tensor {unused[0]!r} ({len(unused)} such tensors)")
    return frozenset(whole)


def _asking(described: str, reply: Path) -> str:
    return _pickled([("tensors", _bytes_tensor(described.encode())), ("reply", _text(reply))])


def _answers(reply: Path, ranks: int) -> list[dict[str, Any]]:
    """What each rank wrote; the files are gone after that. Raises EngineError if one didn't."""
    answers = []
    for rank in range(ranks):
        path = reply.with_name(f"{reply.name}.{rank}")
        try:
            answers.append(json.loads(path.read_text()))
        except (OSError, ValueError) as exc:
            raise NotSharedError(f"rank {rank} of the server left no answer in {path}: {exc}") from exc
        path.unlink()
    return answers


class DiskWay:
    """By a folder that both see."""

    name = "disk"

    def __init__(self, client: Client, folder: Path, files: Mapping[str, bytes]) -> None:
        self._client = client
        self._folder = folder / "weights"
        self._files = files

    def takes_elements(self, name: str) -> bool:
        return False

    def prepare(self, changes: Mapping[str, Change]) -> str:
        self._folder.mkdir(exist_ok=True)
        write_model(self._folder, self._files, _whole(changes))
        return str(self._folder)

    async def send(self, prepared: str, *, flush: bool) -> None:
        body = {"model_path": prepared, "flush_cache": flush}
        try:
            await self._client.post("/update_weights_from_disk", body, within_s=WITHIN_S)
        finally:
            (self._folder / "model.safetensors").unlink(missing_ok=True)


class TensorsWay:
    """In the request."""

    name = "tensors"

    def __init__(self, client: Client, ranks: int) -> None:
        self._session = _Session(client, ranks)

    def takes_elements(self, name: str) -> bool:
        return False

    def prepare(self, changes: Mapping[str, Change]) -> list[str]:
        payloads: list[str] = []
        batch: list[tuple[str, Any]] = []
        size = 0
        for name, tensor in _whole(changes).items():
            if batch and size + tensor.data.nbytes > _REQUEST_BYTES:
                payloads.append(_pickled(batch))
                batch, size = [], 0
            batch.append((name, _torch_tensor(tensor)))
            size += tensor.data.nbytes
        return [*payloads, _pickled(batch)] if batch else payloads

    async def send(self, prepared: list[str], *, flush: bool) -> None:
        if prepared:
            await self._session.update(prepared, flush=flush)


def _whole(changes: Mapping[str, Change]) -> dict[str, HostTensor]:
    whole = {name: change for name, change in changes.items() if isinstance(change, HostTensor)}
    if len(whole) != len(changes):
        raise EngineError(f"tensor {min(set(changes) - set(whole))!r} came as elements, this way takes whole tensors")
    return whole


def _text(path: Path) -> Any:
    return _bytes_tensor(str(path).encode())


def _bytes_tensor(data: bytes) -> Any:
    import torch

    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _torch_tensor(tensor: HostTensor) -> Any:
    import torch

    from astraflow.models.torch_dtypes import TORCH_DTYPES

    flat = torch.frombuffer(bytearray(tensor.data), dtype=TORCH_DTYPES[tensor.dtype])
    return flat.reshape(tensor.shape)


def _pickled(named: list[tuple[str, Any]]) -> str:
    """As SGLang unpickles it (with an allow-list of classes); the tensors' bytes are inside."""
    return base64.b64encode(pickle.dumps(named)).decode()
