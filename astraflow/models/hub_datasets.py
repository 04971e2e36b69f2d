"""Question files by their names on the Hugging Face hub: `hf://datasets/org/name[@revision]/FILE, pattern or split`.

What is in huggingface_hub's own cache is used as it is, without a look at the network; what isn't is downloaded by a
child process, see `hub.py`. Invariant: a returned list is complete, as far as can be known: shards say how many they
are, and which files a pattern means is noted beside them once they are all here.

`python -m astraflow.models.hub_datasets ORG/NAME REVISION FILES` is that child; its last line is the paths as JSON.
"""

import hashlib
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from astraflow.errors import ConfigError, NotHereError
from astraflow.models.dataset_files import chosen, is_pattern, is_shard, is_split
from astraflow.models.hub import EXIT_USER, ID, fetch, needs_hub, with_hub

DATASETS = "hf://datasets/"
_NAME = re.compile(r"(?P<repository>[^/@]+/[^/@]+)(?:@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+))?/(?P<files>.+)")


@dataclass(frozen=True)
class _HubFiles:
    """What an hf:// name says."""

    repository: str  # org/name
    revision: str  # a branch, a tag or a commit
    files: str  # a file, a pattern or a split

    def __str__(self) -> str:
        at = f"@{self.revision}" if self.revision != "main" else ""
        return f"{DATASETS}{self.repository}{at}/{self.files}"

    @property
    def called(self) -> str:
        """For error messages."""
        at = f" at revision {self.revision}" if self.revision != "main" else ""
        return f"{self.files} of dataset {self.repository}{at}"

    @property
    def several(self) -> bool:
        """Whether a listing is needed to tell which files are meant."""
        return is_pattern(self.files) or is_split(self.files)


def parsed(url: str) -> _HubFiles:
    """The parts of hf://datasets/org/name[@revision]/files. Raises ConfigError."""
    match = _NAME.fullmatch(url.removeprefix(DATASETS))
    if not url.startswith(DATASETS) or match is None or not ID.fullmatch(match["repository"]):
        raise ConfigError(
            f"{url!r} names no files of a dataset; expected {DATASETS}org/name/ and a file, a pattern or a split "
            "(main/train); a revision goes behind the name: org/name@v1"
        )
    return _HubFiles(match["repository"], unquote(match["revision"] or "main"), match["files"].strip("/"))


def files_are_here(url: str) -> bool:
    """Whether all files that are meant are in the cache. Raises ConfigError without huggingface_hub."""
    return bool(_cached(parsed(url)))


def hub_files(url: str) -> list[Path]:
    """The files that are meant, in order, downloaded if need be. Blocking.

    Raises: NotHereError if they aren't in the cache and HF_HUB_OFFLINE is set; ConfigError for whatever else is wrong.
    """
    wanted = parsed(url)
    if found := _cached(wanted):
        return found
    try:
        line = fetch(__name__, [wanted.repository, wanted.revision, wanted.files], wanted.called, _by_hand(wanted))
    except NotHereError:
        if some := _cached(wanted, complete=False):  # copied from another machine, perhaps
            return some
        raise
    return [Path(path) for path in json.loads(line)]


def _by_hand(wanted: _HubFiles) -> str:
    """What to do where there is no network."""
    revision = f" --revision {wanted.revision}" if wanted.revision != "main" else ""
    which = wanted.files if not wanted.several else f"--include '{_include(wanted.files)}'"
    return (
        f"on a machine with a network: hf download {wanted.repository} {which} --repo-type dataset{revision} "
        f"--local-dir DIR; copy DIR here and set the environment's args.path = 'DIR/{wanted.files}'"
    )


def _include(files: str) -> str:
    folder, _, split = files.rpartition("/")
    return files if is_pattern(files) else f"{folder}/*" if folder else f"*{split}*"


def _cached(wanted: _HubFiles, *, complete: bool = True) -> list[Path]:
    """Empty if one of them isn't there; of a pattern also if it isn't known whether these are all."""
    repository = _repository(wanted.repository)
    reference = repository / "refs" / wanted.revision
    folder = repository / "snapshots" / (reference.read_text().strip() if reference.is_file() else wanted.revision)
    if not folder.is_dir():
        return []
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    try:
        found = _meant(wanted, names)
    except ConfigError:  # not all of them, or none
        return []
    noted = _note(repository, folder.name, wanted)
    known = not is_pattern(wanted.files) or all(map(is_shard, found))
    if complete and not known and not (noted.is_file() and noted.read_text().split("\n") == found):
        return []
    return [folder / name for name in found]


def _meant(wanted: _HubFiles, names: list[str]) -> list[str]:
    """A plain name is taken as it is, whatever its suffix."""
    if not wanted.several and wanted.files in names:
        return [wanted.files]
    return chosen(wanted.files, names, where=f"dataset {wanted.repository}")


def _repository(repository: str) -> Path:
    needs_hub(repository)
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE) / f"datasets--{repository.replace('/', '--')}"


def _note(repository: Path, commit: str, wanted: _HubFiles) -> Path:
    """Where the names of a pattern's files are noted."""
    return repository / f".astraflow-{hashlib.sha256(f'{commit} {wanted.files}'.encode()).hexdigest()[:16]}"


def download(wanted: _HubFiles) -> list[Path]:
    """In the child: the files. Raises ConfigError."""
    from huggingface_hub import HfApi, hf_hub_download

    with with_hub(wanted.called, _by_hand(wanted)):
        names = [wanted.files]
        if wanted.several:
            names = _meant(
                wanted, HfApi().list_repo_files(wanted.repository, repo_type="dataset", revision=wanted.revision)
            )
        paths = [
            Path(hf_hub_download(wanted.repository, name, repo_type="dataset", revision=wanted.revision))
            for name in names
        ]
        commit = paths[0].parents[names[0].count("/")].name
        _note(_repository(wanted.repository), commit, wanted).write_text("\n".join(names))
    return paths


def main(arguments: list[str]) -> int:
    """The return value is the exit code."""
    try:
        paths = download(_HubFiles(*arguments))
    except ConfigError as exc:
        sys.stderr.write(f"{exc}\n")
        return EXIT_USER
    sys.stdout.write(json.dumps([str(path) for path in paths]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
