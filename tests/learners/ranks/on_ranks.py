"""Run a function on some ranks on this machine, one thread each, and collect what it returns.

Ranks are forked from a server that has imported torch once: an import costs seconds, and a process that has run a
backward pass can't be forked.
"""

import multiprocessing
import pickle
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.fsdp
import torch.distributed.tensor
import transformers.models.llama.modeling_llama

from astraflow.learners.ranks import group
from astraflow.ports import free_port

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([__name__, "astraflow.learners.torch_learner"])
TIMEOUT_S = 300.0


def on_ranks(size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Each rank's result, in their order. Raises the first rank's error with its traceback."""
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        processes = [
            _FORKS.Process(target=_rank, args=(rank, size, port, folder, function, args)) for rank in range(size)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(TIMEOUT_S)
        results = [pickle.loads(Path(folder, f"{rank}").read_bytes()) for rank in range(size)]
    for rank, result in enumerate(results):
        if isinstance(result, RuntimeError):
            raise RuntimeError(f"rank {rank}: {result}")
    return results


def _rank(rank: int, size: int, port: int, folder: str, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    result: Any
    try:
        group.join(rank=rank, size=size, port=port, timeout_s=TIMEOUT_S)
        result = function(*args)
    except Exception:  # noqa: BLE001 - whatever it is, the test shows it
        result = RuntimeError(traceback.format_exc())
    Path(folder, f"{rank}").write_bytes(pickle.dumps(result))
    if dist.is_initialized():
        dist.destroy_process_group()
