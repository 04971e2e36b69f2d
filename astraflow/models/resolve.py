"""From the name of a model in the run file to a folder that holds it, preparing the known ones on first use.

A name is a known one, a folder, or an id on the Hugging Face hub (`hub.py`); in this order.
Invariant: a returned folder holds a config.json and whole weights in safetensors, as far as their headers say.
"""

from collections.abc import Callable
from pathlib import Path

from astraflow.errors import ConfigError
from astraflow.models.cache import built_folder
from astraflow.models.folder import check_folder, write_model
from astraflow.models.hub import hub_model, is_hub_id
from astraflow.models.smollm2 import prepare_smollm2
from astraflow.models.tiny import prepare_tiny
from astraflow.models.toy import toy_model
from astraflow.named import nearest
from astraflow.paths import user_path


def known_models() -> tuple[str, ...]:
    """The names that `resolve_model` takes besides folders, sorted."""
    return tuple(sorted(_PREPARE))


def resolve_model(name: str) -> Path:
    """The model's folder. Blocking; first use takes about 10 s (tiny), 17 s (SmolLM2) or a download, later ones 0.2 s.

    Raises: ConfigError for an unknown name, a folder that can't be used, a missing package, or a download
        that fails.
    """
    if name in _PREPARE:
        return _PREPARE[name]()
    folder = user_path(name)
    if not folder.is_dir() and is_hub_id(name):
        folder = hub_model(name)
        check_folder(folder)
        return folder
    if not folder.is_dir():
        hint = nearest(name, known_models())
        raise ConfigError(f"model {name!r} is neither a folder, nor a known name, nor a hub id (org/name){hint}")
    check_folder(folder)
    return folder.resolve()


def _prepare_toy() -> Path:
    tensors, files = toy_model()
    return built_folder("toy", recipe="toy 1", build=lambda folder: write_model(folder, files, tensors))


_PREPARE: dict[str, Callable[[], Path]] = {
    "smollm2-135m-instruct": prepare_smollm2,
    "tiny-add": lambda: prepare_tiny("add"),
    "tiny-reverse": lambda: prepare_tiny("reverse"),
    "toy": _prepare_toy,
}
