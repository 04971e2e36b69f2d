"""Models by their names on the Hugging Face hub, `org/name`, and what their downloads share with those of data sets.

What is in huggingface_hub's own cache is used as it is, without a look at the network; what isn't is downloaded by a
child process. Actors run with HF_HUB_OFFLINE=1, which huggingface_hub reads once; the child gets what the user had.
Invariant: a returned folder holds all weights, and its small files, because they are downloaded first.

`python -m astraflow.models.hub ORG/NAME` is that child; its last line is the path.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from astraflow.errors import ConfigError, NotHereError
from astraflow.extras import install_hint

_USERS_OFFLINE = "ASTRAFLOW_HF_HUB_OFFLINE"  # what HF_HUB_OFFLINE was before AstraFlow set it
_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
ID = re.compile(rf"{_PART}/{_PART}")
_SMALL = ["*.json", "*.jinja", "*.txt", "*.model"]  # config, tokenizer, chat template, vocabularies
_WEIGHTS = ["model*.safetensors"]  # some also hold the same weights in other layouts
_TEMPLATES = ["additional_chat_templates/*.jinja"]
_SUBFOLDERS = ["*/*"]
EXIT_USER = 3


def is_hub_id(name: str) -> bool:
    """Whether a model's name is to be looked for on the hub: it looks like an id, and like nothing that is here."""
    looks = bool(ID.fullmatch(name)) and ".." not in name and "--" not in name
    return looks and not Path(name.partition("/")[0]).is_dir()  # runs/modle is a typing mistake


def offline(base: Mapping[str, str]) -> dict[str, str]:
    """Environment variables of a process that looks nothing up by itself; `fetch` still knows what the user had."""
    return {"HF_HUB_OFFLINE": "1", _USERS_OFFLINE: base.get(_USERS_OFFLINE, base.get("HF_HUB_OFFLINE", ""))}


def never_fetching() -> dict[str, str]:
    """Environment variables of a process that downloads nothing at all."""
    return {"HF_HUB_OFFLINE": "1", _USERS_OFFLINE: "1"}


def model_is_here(model: str) -> bool:
    """Whether a model is in the cache, complete. Raises ConfigError without huggingface_hub, as all of these."""
    return _cached_model(model) is not None


def model_in_cache(model: str) -> Path | None:
    """The folder of a model that is in the cache, complete; None if it isn't."""
    return _cached_model(model)


def hub_model(model: str) -> Path:
    """The folder of a model, downloaded if need be. Blocking. Raises ConfigError."""
    return _cached_model(model) or Path(fetch(__name__, [model], f"model {model}"))


def _by_hand(model: str) -> str:
    return f"with a network: hf download {model}, and copy ~/.cache/huggingface here"


def _cached_model(model: str) -> Path | None:
    config = _cached_config(model)
    if config is None:
        return None
    folder = config.parent
    has_tokenizer = any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json"))
    return folder if has_tokenizer and _has_weights(folder) else None


def _has_weights(folder: Path) -> bool:
    """All of them, not only those of a download that was interrupted."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return any(folder.glob("model*.safetensors"))
    try:
        shards = set(json.loads(index.read_bytes())["weight_map"].values())
    except (ValueError, KeyError, AttributeError):
        return False
    return all((folder / Path(shard).name).is_file() for shard in shards)


def needs_hub(what: str) -> None:
    """Raises ConfigError if huggingface_hub isn't installed."""
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ConfigError(
            f"{what} is downloaded with huggingface_hub, which isn't installed; it comes with: {install_hint('train')}"
        )


def _cached_config(model: str) -> Path | None:
    needs_hub(model)
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(model, "config.json", repo_type="model")
    return Path(found) if isinstance(found, str) else None


def fetch(module: str, arguments: Sequence[str], what: str, by_hand: str = "") -> str:
    """Run a module that downloads, in a child process that gets what the user had; its last line. Raises ConfigError.

    Args:
        what: how error messages call what is downloaded.
        by_hand: what they advise where nothing can be.
    """
    advice = f"; {by_hand}" if by_hand else ""
    offline = os.environ.get(_USERS_OFFLINE, os.environ.get("HF_HUB_OFFLINE", ""))
    if offline.upper() in ("1", "ON", "YES", "TRUE"):
        raise NotHereError(f"{what} isn't in the Hugging Face cache, and HF_HUB_OFFLINE is set{advice}")
    command = [sys.executable, "-m", module, *arguments]
    environment = {**os.environ, "HF_HUB_OFFLINE": offline, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment)
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()[-1:]
    if done.returncode == EXIT_USER:
        raise ConfigError(lines[0])
    if done.returncode != 0:
        why = "".join(lines) or f"exit code {done.returncode}"
        raise ConfigError(f"downloading {what} failed: {why}{advice}")
    return lines[0]


def download(model: str) -> Path:
    """In the child: the model's folder. Raises ConfigError."""
    from huggingface_hub import snapshot_download

    what = f"model {model}"
    with with_hub(what, _by_hand(model)):
        snapshot_download(model, allow_patterns=_TEMPLATES)
        for patterns in (_SMALL, _WEIGHTS):  # so that where weights are, the rest is too
            folder = Path(snapshot_download(model, allow_patterns=patterns, ignore_patterns=_SUBFOLDERS))
    if not (folder / "config.json").is_file() or not _has_weights(folder):
        raise ConfigError(f"{what} has no config.json or no model*.safetensors; other formats can't be used")
    return folder


@contextmanager
def with_hub(what: str, by_hand: str) -> Iterator[None]:
    """In the child: huggingface_hub's errors as ConfigErrors. Args: see `fetch`."""
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        RemoteEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        yield
    except GatedRepoError as exc:
        raise ConfigError(f"{what} is gated: accept its terms at https://huggingface.co, then `hf auth login`") from exc
    except RepositoryNotFoundError as exc:
        raise ConfigError(f"there is no {what} on the Hugging Face hub; a private one needs `hf auth login`") from exc
    except (RemoteEntryNotFoundError, RevisionNotFoundError) as exc:
        raise ConfigError(f"there is no {what} on the Hugging Face hub") from exc
    except LocalEntryNotFoundError as exc:
        raise ConfigError(
            f"{what} isn't in the Hugging Face cache, and the hub can't be reached ({_cause(exc)}); {by_hand}"
        ) from exc
    except OSError as exc:  # the network again, or the disk
        raise ConfigError(f"downloading {what} failed: {_first_line(exc)}") from exc


def _cause(exc: BaseException) -> str:
    """What went wrong at the bottom."""
    while exc.__cause__ is not None:
        exc = exc.__cause__
    return _first_line(exc)


def _first_line(exc: BaseException) -> str:
    return next(iter(str(exc).strip().splitlines()), "") or type(exc).__name__


def main(arguments: list[str]) -> int:
    """The return value is the exit code."""
    try:
        path = download(*arguments)
    except ConfigError as exc:
        sys.stderr.write(f"{exc}\n")
        return EXIT_USER
    sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
