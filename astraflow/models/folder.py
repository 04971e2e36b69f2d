"""Model folders as bytes: small files and tensors by name, without torch.

    config.json, tokenizer.json, …   → files
    *.safetensors                    → tensors

It does not interpret them. What `read_model` reads, `write_model` writes back so that transformers loads it.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from astraflow.algos.tensors import HostTensor
from astraflow.errors import ConfigError, WeightsError

MAX_FILE_BYTES = 64 << 20  # of a small file; vocabularies have some megabytes
TEMPLATES_FOLDER = "additional_chat_templates"  # transformers' name; the only folder in a model folder that counts
_SKIPPED = {".safetensors", ".bin", ".gguf", ".pt"}
_TORCH_NAMES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}


def read_files(folder: Path) -> dict[str, bytes]:
    """The small files of a model folder by name. Raises ConfigError without a config.json."""
    if not (folder / "config.json").is_file():
        raise ConfigError(f"model folder {folder} has no config.json")
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in [*sorted(folder.iterdir()), *sorted((folder / TEMPLATES_FOLDER).glob("*.jinja"))]
        if path.is_file()
        and not path.name.startswith(".")
        and path.suffix not in _SKIPPED
        and not path.name.endswith(".index.json")
        and path.stat().st_size <= MAX_FILE_BYTES
    }


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write what `read_files` read into a folder that exists, and nothing outside of it, whatever the names."""
    for name, data in files.items():
        path = Path(name)
        within = folder / TEMPLATES_FOLDER if path.parent.name == TEMPLATES_FOLDER else folder
        within.mkdir(exist_ok=True)
        (within / path.name).write_bytes(data)


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

    write_files(folder, files)
    buffers = {name: np.frombuffer(tensor.data, np.uint8) for name, tensor in tensors.items()}  # alive while written
    specs = {
        name: TensorSpec(
            dtype=_TORCH_NAMES[tensor.dtype],
            shape=list(tensor.shape),
            data_ptr=buffers[name].ctypes.data,
            data_len=tensor.data.nbytes,
        )
        for name, tensor in tensors.items()
    }
    serialize_file(specs, str(folder / "model.safetensors"), metadata={"format": "pt"})
