"""What AstraFlow runs inside an SGLang server: a custom weight loader that applies whole tensors and single elements.

Put this package's folder on the server's PYTHONPATH and start it with
`--custom-weight-loader astraflow_sglang.apply_update astraflow_sglang.describe`; then, within a weight update session,
POST /update_weights_from_tensor with `load_format` set to one of the two, `selector` to "target" (a draft model would
answer into the same file), and these named tensors, all uint8:

    apply_update: ("path", UTF-8 path of an update file) or ("update", its content), and, best, ("reply", UTF-8 path)
    describe:     ("tensors", JSON {name: [dtype, shape]}), ("reply", UTF-8 path)

Each rank writes its answer, JSON, to `<reply>.<rank>`. With a reply `apply_update` never raises: SGLang's scheduler
ends when a weight loader raises, and says "Success" whatever a loader returns. So ask without `weight_version`, read
all ranks' answers, and set the version then.

Not here: the format's writer (astraflow's `engines/sglang/update_file.py`), flushing caches, weight versions.
Imports torch, numpy and the standard library, never astraflow; sglang only calls in.
Invariant: what can be checked is checked before the first element is written, and after an update every parameter has
the bits that `model.load_weights` would have given it with the new tensors.
"""

import json
import os
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from astraflow_sglang.memory import fingerprint
from astraflow_sglang.reading import DTYPES, UpdateError, read_update
from astraflow_sglang.tracing import traces_of
from astraflow_sglang.writing import check, write

__all__ = ["UpdateError", "apply_update", "describe"]


def apply_update(model: nn.Module, named_tensors: Sequence[tuple[str, Tensor]]) -> None:
    """Make the parameters what the update says.

    The reply: {"state": "applied" | "unchanged" | "partial", "reason": why not applied, "tensors", "elements": counts,
    "read_s", "trace_s", "write_s"}. After "partial", or where ranks disagree, only a full load helps.
    Raises: UpdateError without a reply path, if the update was not applied.
    """
    asked = dict(named_tensors)
    answer: dict[str, Any] = {"state": "unchanged"}
    try:
        with torch.no_grad():
            _apply(model, asked, answer)
    except Exception as error:  # noqa: BLE001 - the boundary to SGLang, whose scheduler would end
        answer["reason"] = f"{error}" if isinstance(error, UpdateError) else f"{type(error).__name__}: {error}"
        if answer["state"] == "partial":
            answer["reason"] += "; the model is partly updated, load it in full"
    _reply(asked, answer)
    if "reply" not in asked and "reason" in answer:
        raise UpdateError(answer["reason"])


def _apply(model: nn.Module, asked: dict[str, Tensor], answer: dict[str, Any]) -> None:
    started_s = time.perf_counter()
    with read_update(_text(asked["path"]) if "path" in asked else _bytes(asked.get("update"))) as entries:
        read_s = time.perf_counter()
        traces = traces_of(model, {entry.name: (entry.dtype, entry.shape) for entry in entries})
        check(entries, traces)
        traced_s = time.perf_counter()
        answer["state"] = "partial"
        answer["elements"] = write(model, entries, traces)
    answer |= {"state": "applied", "tensors": len(entries)}
    answer |= {"read_s": read_s - started_s, "trace_s": traced_s - read_s, "write_s": time.perf_counter() - traced_s}


def describe(model: nn.Module, named_tensors: Sequence[tuple[str, Tensor]]) -> None:
    """Say for tensors of these names, dtypes and shapes how they can be updated; writes no parameter.

    The reply: {"traceable": [name], "unused": [name], "untraceable": {name: why}, "refused": {name: why}, "trace_s",
    "reason": why nothing could be said}. Traceable: by elements or whole. Unused: lands nowhere on this rank (another
    rank has it, or the model skips it). Untraceable: only whole. Refused: the model's loader doesn't take it.
    """
    asked = dict(named_tensors)
    answer: dict[str, Any] = {}
    try:
        with torch.no_grad():
            _describe(model, json.loads(bytes(_bytes(asked.get("tensors")))), answer)
    except Exception as error:  # noqa: BLE001 - as above
        answer["reason"] = f"{type(error).__name__}: {error}"
    _reply(asked, answer)
    if "reply" not in asked:
        raise UpdateError('describe was called without ("reply", path)')


def _describe(model: nn.Module, tensors: dict[str, tuple[str, list[int]]], answer: dict[str, Any]) -> None:
    before = fingerprint(model)
    started_s = time.perf_counter()
    traces = traces_of(model, {name: (DTYPES[dtype], tuple(shape)) for name, (dtype, shape) in tensors.items()})
    answer["trace_s"] = time.perf_counter() - started_s
    after = fingerprint(model)
    if changed := [name for name in before | after if before.get(name) != after.get(name)]:
        raise UpdateError(f"tracing changed {changed[0]} ({len(changed)} parameters), load the model in full")
    answer["traceable"] = [name for name, trace in traces.items() if trace.windows]
    answer["unused"] = [name for name, trace in traces.items() if not trace.windows and not trace.why]
    answer["untraceable"] = {name: trace.why for name, trace in traces.items() if trace.why and not trace.refused}
    answer["refused"] = {name: trace.why for name, trace in traces.items() if trace.refused}


def _reply(asked: dict[str, Tensor], answer: dict[str, Any]) -> None:
    if "reply" not in asked:
        return
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    path = f"{_text(asked['reply'])}.{rank}"
    with open(f"{path}.unfinished", "w", encoding="utf-8") as file:
        json.dump(answer, file)
    os.replace(f"{path}.unfinished", path)


def _bytes(tensor: Tensor | None) -> memoryview:
    if tensor is None or tensor.dtype is not torch.uint8:
        raise UpdateError("a uint8 tensor of a path or of content is missing")
    return tensor.cpu().contiguous().numpy().data.cast("B")


def _text(tensor: Tensor) -> str:
    return bytes(_bytes(tensor)).decode()
