"""Model folders as bytes: small files and tensors by name, without torch.

    config.json, tokenizer.json, …   → files
    *.safetensors                    → tensors

It does not interpret them. What `read_model` reads, `write_model` writes back so that transformers loads it.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from astraflow.errors import ConfigError, WeightsError
from astraflow.weights.codec.tensors import LONG_NAMES, HostTensor

MAX_FILE_BYTES = 64 << 20  # of a small file; vocabularies have some megabytes
_SKIPPED = {".safetensors", ".bin", ".gguf", ".pt"}


def read_files(folder: Path) -> dict[str, bytes]:
    """The small files of a model folder by name. Raises ConfigError without a config.json."""
    if not (folder / "config.json").is_file():
        raise ConfigError(f"model folder {folder} has no config.json")
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.is_file()
        and not path.name.startswith(".")
        and path.suffix not in _SKIPPED
        and not path.name.endswith(".index.json")
        and path.stat().st_size <= MAX_FILE_BYTES
    }


def read_model(folder: Path) -> tuple[dict[str, bytes], dict[str, HostTensor]]:
    """(files, tensors) of a model folder. Raises ConfigError if it holds no safetensors."""
    from safetensors import SafetensorError, deserialize

    files = read_files(folder)
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise ConfigError(f"model folder {folder} has no .safetensors file")
    tensors: dict[str, HostTensor] = {}
    for path in paths:
        try:
            entries = deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
        except SafetensorError as exc:
            raise WeightsError(f"{path} is no safetensors file: {exc}") from exc
        for name, entry in entries:
            tensors[name] = HostTensor(entry["dtype"], tuple(entry["shape"]), memoryview(entry["data"]))
    return files, tensors


def write_model(folder: Path, files: Mapping[str, bytes], tensors: Mapping[str, HostTensor]) -> None:
    """Write a folder that `transformers` loads. The folder must exist."""
    from safetensors import TensorSpec, serialize_file

    for name, data in files.items():
        (folder / Path(name).name).write_bytes(data)
    buffers = {name: np.frombuffer(tensor.data, np.uint8) for name, tensor in tensors.items()}  # alive while written
    specs = {
        name: TensorSpec(
            dtype=LONG_NAMES[tensor.dtype],
            shape=list(tensor.shape),
            data_ptr=buffers[name].ctypes.data,
            data_len=tensor.data.nbytes,
        )
        for name, tensor in tensors.items()
    }
    serialize_file(specs, str(folder / "model.safetensors"), metadata={"format": "pt"})
