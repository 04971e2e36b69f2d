"""Which files of a folder or repository a name means: a file, a pattern, or a split as published sets call theirs.

    main/train-*.parquet   every file of that form           train        split `train`, wherever its files lie
    train.jsonl            the file                          main/train   split `train` of the folder `main`

Pure: it works on names. Invariant: unless a pattern says otherwise, what it returns is one file or all its shards
(`…-00000-of-00004.parquet` says how many there are), never two sets mixed.
"""

import re
from collections.abc import Iterable, Sequence
from fnmatch import translate

from astraflow.errors import ConfigError
from astraflow.named import nearest

SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".json", ".csv", ".tsv")
_COMPRESSED = (".gz", ".zst")
_WILD = re.compile(r"[*?\[]")
_SHARD = re.compile(r"(.*)-(\d{3,6})-of-(\d{3,6})\b.*")
_SEPARATORS = re.compile(r"[-._ /]+")
_NUMBERED = re.compile(r"(?:part[-_.]?)?\d{3,}\..*", re.IGNORECASE)
_ALSO = {"validation": ("validation", "valid", "val", "dev"), "test": ("test", "eval")}  # as published sets spell them
_NOT_DATA = ("dataset_infos.json", "dataset_info.json", "state.json", "package.json", "tokenizer.json")


def is_pattern(name: str) -> bool:
    """Whether it names files by `*`, `?` or `[…]`."""
    return bool(_WILD.search(name))


def format_of(name: str) -> str:
    """Its suffix in small letters, without that of a compression; "" if it is no file of questions."""
    stem = name.lower()
    for packed in _COMPRESSED:
        stem = stem.removesuffix(packed)
    return next((suffix for suffix in SUFFIXES if stem.endswith(suffix)), "")


def is_split(name: str) -> bool:
    """Whether a name is to be read as a split: neither a pattern nor the name of a file."""
    return not is_pattern(name) and not format_of(name) and "." not in name.rpartition("/")[2]


def is_shard(name: str) -> bool:
    """Whether a name says how many of its like there are."""
    return bool(_SHARD.fullmatch(name))


def chosen(wanted: str, names: Iterable[str], *, where: str) -> list[str]:
    """The names that are meant, in order.

    Args:
        wanted: a file, a pattern or a split; "" = all files, if they are of one set.
        names: of all files, with `/` between folders.
        where: how error messages call the place.
    Raises: ConfigError if there is none, if they are of several sets, or if a shard is missing.
    """
    files = sorted(name for name in names if format_of(name) and name.rpartition("/")[2] not in _NOT_DATA)
    found = _found(wanted, files)
    if not found:
        raise ConfigError(f"{where} has no {_called(wanted)}{nearest(wanted, files)}")
    if not is_pattern(wanted) and not _one_set(found):
        raise ConfigError(
            f"{_called(wanted)} of {where} could be {', '.join(found[:6])}{', …' if len(found) > 6 else ''}, "
            "which aren't of one set: name a file, a split in a folder, or a pattern with *"
        )
    _check_shards(found, where=where)
    return found


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """The names of a pattern, in order; `*` doesn't cross folders, `**` does."""
    parts = pattern.split("**/")
    inner = [translate(part).replace("(?s:", "(?:").removesuffix(r"\Z").removesuffix(r"\z") for part in parts]
    form = re.compile("(?:.*/)?".join(part.replace(".*", "[^/]*") for part in inner))
    return sorted(name for name in names if form.fullmatch(name))


def _check_shards(names: Sequence[str], *, where: str) -> None:
    """Raises ConfigError if one of `…-00000-of-00004…` and its like is missing."""
    numbers: dict[tuple[str, int], set[int]] = {}
    for name in names:
        if match := _SHARD.fullmatch(name):
            numbers.setdefault((match[1], int(match[3])), set()).add(int(match[2]))
    for (stem, of), here in numbers.items():
        if missing := sorted(set(range(of)) - here):
            raise ConfigError(
                f"{where}: of {stem}-*-of-{of:05d} {len(missing)} of {of} files are missing, the first is {missing[0]}"
            )


def _found(wanted: str, files: Sequence[str]) -> list[str]:
    if not wanted:
        return list(files)
    if is_pattern(wanted):
        return matching(wanted, files)
    if wanted in files or not is_split(wanted):
        return [name for name in files if name == wanted]
    folder, _, split = wanted.rpartition("/")
    spelt = [_words(word) for word in _ALSO.get(split, (split,))]
    under = {name: name[len(folder) :].strip("/") for name in files if name.startswith(f"{folder}/" if folder else "")}
    exact = [name for name, rest in under.items() if any(words in _parts(rest) for words in spelt)]
    return exact or [name for name, rest in under.items() if any(_holds(_words(rest), words) for words in spelt)]


def _words(text: str) -> list[str]:
    return [word for word in _SEPARATORS.split(text.lower()) if word]


def _parts(name: str) -> list[list[str]]:
    """The words of each folder in a name, and of the file without shard and suffix."""
    *folders, file = name.split("/")
    stem = match[1] if (match := _SHARD.fullmatch(file)) else file[: file.lower().rindex(format_of(file))]
    return [_words(part) for part in (*folders, stem)]


def _holds(words: Sequence[str], some: Sequence[str]) -> bool:
    return any(words[i : i + len(some)] == some for i in range(len(words)))


def _one_set(names: Sequence[str]) -> bool:
    """Whether files are the shards of one, by their names: `…-00000-of-00002.…`, or `0000.…` and `part-0000.…`."""
    if len({(name.rpartition("/")[0], format_of(name)) for name in names}) > 1:
        return False
    stems = {match[1] if (match := _SHARD.fullmatch(name)) else name for name in names}
    return len(stems) == 1 or all(_NUMBERED.fullmatch(name.rpartition("/")[2]) for name in names)


def _called(wanted: str) -> str:
    if not wanted:
        return "file of questions"
    return f"split {wanted!r}" if is_split(wanted) else f"file {wanted}"
