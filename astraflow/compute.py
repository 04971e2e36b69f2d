"""On what a machine computes and in which float type: one choice for learner and engine, kept beside the models.

It measures instead of reading CPU flags: what counts is what torch's kernels do here. The first process measures, in
about 20 ms, and writes its answer down; all others on this machine take it, so that learner and engine don't choose
differently because one of them looked while the other computed.
Not here: masters and gradients (`learners/master.py`). The engine computes on the CPU, the learner where it is told.
"""

import contextlib
import hashlib
import os
import platform
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from astraflow import clock
from astraflow.errors import ConfigError
from astraflow.models.cache import cache_root

# With bf16 units (AVX512-BF16, AMX) bf16 products are 2 to 4 times faster than fp32 ones, without them several times
# slower, so the bound is far from both even on a busy machine.
_WORTHWHILE = 1.5
_PROBE_ROWS, _PROBE_SIZE = 64, 768  # a decode step's; a training step's gain more
_PROBE_REPEATS = 5


CPU = torch.device("cpu")


def compute_device(wanted: Literal["auto", "cuda", "cpu"]) -> torch.device:
    """The torch device behind a config value: `auto` is the GPU that torch sees, else the CPU.

    Raises: ConfigError if a GPU is asked for and torch sees none.
    """
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return CPU
    if not torch.cuda.is_available():
        raise ConfigError(
            f'trainer.device is "cuda", but torch {torch.__version__} sees no GPU here; '
            'install a build of torch for this machine\'s driver, or say device = "auto" or "cpu"'
        )
    return torch.device("cuda", torch.cuda.current_device())


def placed(array: NDArray[Any], device: torch.device) -> Tensor:
    """The array as a tensor there; on the CPU they share their memory."""
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


def compute_dtype(wanted: Literal["auto", "bf16", "fp32"], device: torch.device = CPU) -> torch.dtype:
    """The torch dtype behind a config value: `auto` is bf16 where it is clearly faster, else fp32."""
    if wanted == "auto" and device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    if wanted == "auto":
        return torch.bfloat16 if _bf16_is_fast() else torch.float32
    return torch.bfloat16 if wanted == "bf16" else torch.float32


@cache
def _bf16_is_fast() -> bool:
    """This machine's answer: what another process of it has found, else measured now."""
    return settled_choice(cache_root() / f"compute-{_machine()}")


def settled_choice(file: Path) -> bool:
    """What the file says, which is measured and written if it isn't there; the first of several writers counts."""
    for _ in range(2):
        with contextlib.suppress(OSError):
            text = file.read_text()
            if text in ("bf16", "fp32"):
                return text == "bf16"
        measured = _product_s(torch.float32) > _WORTHWHILE * _product_s(torch.bfloat16)
        if not _written(file, "bf16" if measured else "fp32"):
            return measured
    return measured


def _written(file: Path, text: str) -> bool:
    """Put the file there, whole, unless another process was first; False if the folder can't be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=".compute-") as temporary:
            temporary.write(text)
            temporary.flush()
            with contextlib.suppress(FileExistsError):
                os.link(temporary.name, file)
    except OSError:
        return False
    return True


def _machine() -> str:
    """Changes with what decides: the CPU and torch. A home folder may be shared by several machines."""
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        cpu = "\n".join(line for line in lines if line.startswith(("model name", "flags", "Features")))
    return hashlib.sha256(f"{cpu} {torch.__version__}".encode()).hexdigest()[:16]


def _product_s(dtype: torch.dtype) -> float:
    """Best time of a few products, so that a busy machine doesn't decide."""
    a = torch.ones(_PROBE_ROWS, _PROBE_SIZE, dtype=dtype)
    b = torch.ones(_PROBE_SIZE, _PROBE_SIZE, dtype=dtype)
    best = float("inf")
    for _ in range(_PROBE_REPEATS):
        started = clock.monotonic()
        torch.nn.functional.linear(a, b)
        best = min(best, clock.monotonic() - started)
    return best
