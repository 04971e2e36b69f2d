"""Model folders as bytes: small files and tensors by name, without torch.

    config.json, tokenizer.json, …                                            → files
    model.safetensors, or the shards that model.safetensors.index.json names  → tensors

It knows which files count, as transformers does, and whether they are whole, but not what a family's tensors must be
(`loading.py`). What `read_model` reads, `write_model` writes back so that transformers loads it.
"""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from astraflow.errors import ConfigError
from astraflow.models.facts import TOY, needs_remote_code, read_facts
from astraflow.weights.codec.tensors import LONG_NAMES, HostTensor

_MAX_FILE_BYTES = 64 << 20  # of a small file; vocabularies have some megabytes
_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_HEADER_BYTES = 100 << 20  # safetensors' own bound
_LFS_POINTER = b"version https://git-lfs"
TEMPLATES_FOLDER = "additional_chat_templates"  # transformers' name; the only folder in a model folder that counts
_ADAPTER = "adapter_config.json"
_SKIPPED = {".safetensors", ".bin", ".gguf", ".pt"}


def check_folder(folder: Path) -> None:
    """Raises ConfigError for a model folder that can't be used, as far as that is seen without reading its tensors."""
    try:
        facts = read_facts(read_files(folder))
        if facts.model_type != TOY and needs_remote_code(facts.config):
            _check_known(facts.config)
    except ConfigError as exc:
        raise ConfigError(f"model folder {folder}: {exc}") from exc
    weight_files(folder)


def _check_known(config: Mapping[str, Any]) -> None:
    """Whether transformers knows a family whose folder brings code; without transformers here, that is seen later."""
    try:
        from astraflow.models.derived import derived_config
    except ModuleNotFoundError:
        return
    derived_config(config)


def read_files(folder: Path) -> dict[str, bytes]:
    """The small files of a model folder by name. Raises ConfigError without a config.json, or if one can't be read."""
    if not (folder / "config.json").is_file():
        raise ConfigError(f"model folder {folder} has no config.json")
    try:
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in [*sorted(folder.iterdir()), *sorted((folder / TEMPLATES_FOLDER).glob("*.jinja"))]
            if path.is_file()
            and not path.name.startswith(".")
            and path.suffix not in _SKIPPED
            and not path.name.endswith(".index.json")
            and path.stat().st_size <= _MAX_FILE_BYTES
        }
    except OSError as exc:
        raise ConfigError(f"model folder {folder} can't be read: {exc}") from exc


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights: others beside them don't count, whatever they are called.

    Raises: ConfigError if there are none, or one that the index names is missing, cut off, or only points to the data.
    """
    if (folder / _ADAPTER).is_file():
        raise ConfigError(
            f"model folder {folder} holds an adapter ({_ADAPTER}) and not a whole model; merge it into its base model "
            "with peft's merge_and_unload() and save that"
        )
    if (folder / _WHOLE).is_file():
        found = [folder / _WHOLE]
    elif (folder / _INDEX).is_file():
        found = [folder / name for name in _shards(folder / _INDEX)]
        missing = [path.name for path in found if not path.is_file()]
        if missing:
            raise ConfigError(f"model folder {folder} lacks {_some(missing)}, which {_INDEX} names; download it again")
    else:
        raise ConfigError(f"model folder {folder} has no {_WHOLE}{_what_else(folder)}")
    for path in found:
        _check_whole(path)
    return found


def _shards(index: Path) -> list[str]:
    """The names in an index, sorted."""
    try:
        names = set(json.loads(index.read_bytes())["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise ConfigError(f"{index} is no index of shards: {exc!r}") from exc
    wrong = [name for name in names if not isinstance(name, str) or Path(name).name != name]
    if wrong or not names:
        raise ConfigError(f"{index} names {wrong[0]!r} as a shard" if wrong else f"{index} names no shards")
    return sorted(names)


def _what_else(folder: Path) -> str:
    """What a folder without weights of the right name holds instead, for people."""
    others = sorted(path.name for path in folder.iterdir() if path.suffix in _SKIPPED)
    if not others:
        return f" and no {_INDEX}"
    convert = "; load it with transformers and save_pretrained it, which writes safetensors"
    return f", only {_some(others)}{'' if any(n.endswith('.safetensors') for n in others) else convert}"


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _check_whole(path: Path) -> None:
    """Raises ConfigError if the header of a safetensors file doesn't fit its size."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(len(_LFS_POINTER))
            if start == _LFS_POINTER:
                raise ConfigError(f"{path} is a git-lfs pointer, not the weights; run `git lfs pull` in {path.parent}")
            length = struct.unpack("<Q", start[:8])[0] if len(start) >= 8 else 0
            if not 2 <= length <= MAX_HEADER_BYTES:
                raise ConfigError(f"{path} is no safetensors file")
            file.seek(8)
            header = json.loads(file.read(length))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as exc:
        raise ConfigError(f"{path} is no safetensors file: {exc!r}") from exc
    whole = 8 + length + max(ends, default=0)
    if size != whole:
        raise ConfigError(f"{path} has {size} bytes, its header speaks of {whole}: it is cut off or damaged")


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write what `read_files` read into a folder that exists, and nothing outside of it, whatever the names."""
    for name, data in files.items():
        path = Path(name)
        within = folder / TEMPLATES_FOLDER if path.parent.name == TEMPLATES_FOLDER else folder
        within.mkdir(exist_ok=True)
        (within / path.name).write_bytes(data)


def read_model(folder: Path) -> tuple[dict[str, bytes], dict[str, HostTensor]]:
    """(files, tensors) of a model folder as they are on disk. Raises ConfigError for one that can't be used."""
    from safetensors import SafetensorError, deserialize

    check_folder(folder)
    tensors: dict[str, HostTensor] = {}
    for path in weight_files(folder):
        try:
            entries = deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
        except SafetensorError as exc:
            raise ConfigError(f"{path} is no safetensors file: {exc}") from exc
        for name, entry in entries:
            tensors[name] = HostTensor(entry["dtype"], tuple(entry["shape"]), memoryview(entry["data"]))
    return read_files(folder), tensors


def write_model(folder: Path, files: Mapping[str, bytes], tensors: Mapping[str, HostTensor]) -> None:
    """Write a folder that `transformers` loads. The folder must exist."""
    from safetensors import TensorSpec, serialize_file

    write_files(folder, files)
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
