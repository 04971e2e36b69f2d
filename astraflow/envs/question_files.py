"""Rows of question files: JSON lines, a JSON array, an object around one, CSV, parquet; also packed as .gz or .zst.

What a file is, its content says where it can: a suffix in capitals, or a wrong one, does no harm. It knows nothing of
questions. Invariant: whatever is wrong in a file is a ConfigError that names it, and the line or row.
"""

import csv
import gzip
import io
import itertools
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import zstandard

from astraflow.envs.arguments import import_extra
from astraflow.envs.presets import QuestionSource
from astraflow.errors import ConfigError
from astraflow.models.dataset_files import SUFFIXES, chosen, format_of, is_pattern
from astraflow.models.hub_datasets import DATASETS, hub_files
from astraflow.named import nearest

Row = tuple[str, Mapping[str, Any]]  # where it stands, for error messages; its values by key
_HasKeys = Callable[[Mapping[str, Any]], bool]
_LFS = b"version https://git-lfs"
_DEPTH = 3  # of folders in a folder, in which a split is looked for
_LONGEST_CELL = 2**31 - 1
_SEPARATED = {".csv": ",", ".tsv": "\t"}
_BLANK = re.compile(r"[ \t\r\n]*")
_JSON = json.JSONDecoder(parse_float=Decimal)  # 0.10 stays what it is


def find_sources(wanted: QuestionSource) -> list[Path]:
    """The files of all paths of a source. Raises: see `_find_files`."""
    return [file for path in wanted.paths for file in _of_preset(path, wanted.inside) or _find_files(path)]


def _of_preset(folder: str, inside: str) -> list[Path]:
    """A preset's files in the user's copy of its repository; empty if it isn't laid out like one."""
    if not inside or folder.startswith(DATASETS) or not Path(folder).expanduser().is_dir():
        return []
    try:
        return _find_files(f"{folder}/{inside}")
    except ConfigError:
        return []


def _find_files(path: str) -> list[Path]:
    """The files of a path: a file, a pattern, a folder, a split in a folder, or hf://datasets/…, which is downloaded.

    Raises: ConfigError if there is none; NotHereError if it would have to be downloaded and may not be.
    """
    if path.startswith(DATASETS):
        return hub_files(path)
    if "://" in path:
        raise ConfigError(f"{path} can't be read; download it and name the file, or name it as {DATASETS}org/name/…")
    try:
        return _local_files(path, Path(path).expanduser())
    except (OSError, RuntimeError, ValueError) as exc:  # no rights, no such home, a name too long, a pattern like a**b
        raise ConfigError(f"{path} can't be looked for: {exc}") from exc


def _local_files(path: str, local: Path) -> list[Path]:
    if local.is_file():
        return [local]
    folder, wanted = _folder_and_rest(local)
    if not folder.is_dir() or (format_of(local.name) and not is_pattern(wanted)):
        beside = [each.name for each in folder.iterdir() if format_of(each.name)] if folder.is_dir() else []
        hint = nearest(local.name, beside) if beside else ""
        raise ConfigError(f"question file {path} doesn't exist (relative to {Path.cwd()}){hint}")
    found = folder.glob(wanted) if is_pattern(wanted) else _walk(folder, _DEPTH)
    names = [each.relative_to(folder).as_posix() for each in found if each.is_file()]
    try:
        return [folder / name for name in chosen(wanted, names, where=f"folder {folder}")]
    except ConfigError as exc:
        missing = "" if local.is_dir() or is_pattern(wanted) else f"question file {path} doesn't exist: "
        raise ConfigError(f"{missing}{exc}") from exc


def _folder_and_rest(path: Path) -> tuple[Path, str]:
    """Where files are looked for, and what is looked for there: a pattern, a split (main/train), or all."""
    if path.is_dir():
        return path, ""
    for count, part in enumerate(path.parts):
        if is_pattern(part):
            return Path(*path.parts[:count]), "/".join(path.parts[count:])
    above = path.parent if path.parent.is_dir() else path.parent.parent
    return above, path.relative_to(above).as_posix()


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    """Files in it and in its folders, but for hidden ones."""
    for each in folder.iterdir():
        if not each.name.startswith("."):
            yield from _walk(each, depth - 1) if depth and each.is_dir() else (each,)


def read_rows(path: Path, keys: Sequence[str], has_keys: _HasKeys) -> Iterator[Row]:
    """All rows of a file, in order.

    Args:
        keys: names of the columns that are wanted; of parquet only these are read.
        has_keys: tells a JSON object that is a row from one around a list of rows.
    Raises: ConfigError.
    """
    try:
        with path.open("rb") as stream:
            start = stream.read(64)
            if start.startswith(_LFS):
                raise ConfigError(f"{path} is the pointer of a Git LFS file, not the file itself; run: git lfs pull")
            if start.startswith(b"PAR1") or format_of(path.name) == ".parquet":
                yield from _parquet_rows(path, keys)
                return
            text = _text(start + stream.read())
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as exc:
        raise ConfigError(f"question file {path} can't be read: {exc}") from exc
    except UnicodeDecodeError as exc:
        line = exc.object.count(b"\n", 0, exc.start) + 1
        raise ConfigError(f"{path}:{line}: not UTF-8: {exc}; save it as UTF-8") from exc
    yield from _csv_rows(path, text) if format_of(path.name) in _SEPARATED else _json_rows(path, text, has_keys)


def _text(data: bytes) -> str:
    """Unpacked, without a byte order mark."""
    if data.startswith(b"\x1f\x8b"):
        data = gzip.decompress(data)
    elif data.startswith(b"\x28\xb5\x2f\xfd"):
        data = b"".join(_zstandard_frames(data))
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) and not data.startswith(b"\xff\xfe\x00"):
        return data.decode("utf-16")
    return data.decode("utf-8-sig")


def _zstandard_frames(data: bytes) -> Iterator[bytes]:
    while data:
        frame = zstandard.ZstdDecompressor().decompressobj()
        yield frame.decompress(data)
        if not frame.eof:  # which isn't an error to the library
            raise EOFError("it ends in the middle")
        data = frame.unused_data


def _json_rows(path: Path, text: str, has_keys: _HasKeys) -> Iterator[Row]:
    """An array, lines, or one object around the rows, whichever the beginning shows."""
    start = _BLANK.match(text).end()  # type: ignore[union-attr]
    if text.startswith("[", start):
        yield from _array(path, text, start)
        return
    lines = ((number, line) for number, line in enumerate(io.StringIO(text, newline=None), start=1) if line.strip())
    first = next(lines, None)
    if first is None:
        return
    second = next(lines, None)
    if format_of(path.name) == ".json" and second is not None and not _is_json(first[1]):
        first, second = (first[0], text), None  # one object over many lines
    where, row = f"{path}:{first[0]}", _object(first[1], f"{path}:{first[0]}", path)
    if second is None and (not has_keys(row) or _is_columns(row)):
        yield from _inside(path, row, where)
        return
    yield where, row
    for number, line in itertools.chain([second] if second else [], lines):
        yield f"{path}:{number}", _object(line, f"{path}:{number}", path)


def _array(path: Path, text: str, start: int) -> Iterator[Row]:
    """The objects of a JSON array, each with the line where it begins."""
    position, number, counted = start + 1, text.count("\n", 0, start) + 1, start
    separator = ""
    while True:
        position = _BLANK.match(text, position).end()  # type: ignore[union-attr]
        if text.startswith("]", position) and separator != ",":
            break
        number, counted = number + text.count("\n", counted, position), position
        where = f"{path}:{number}"
        try:
            row, position = _JSON.raw_decode(text, position)
        except (ValueError, RecursionError) as exc:
            raise _not_json(where, exc, path, text[start:]) from exc
        if not isinstance(row, dict):
            raise ConfigError(f"{where}: holds list, with {type(row).__name__} in it; expected JSON objects")
        yield where, row
        position = _BLANK.match(text, position).end()  # type: ignore[union-attr]
        separator = text[position : position + 1]
        if separator not in (",", "]"):
            number += text.count("\n", counted, position)
            raise ConfigError(f"{path}:{number}: not JSON: a comma or ] is missing after an object of the array")
        position += separator == ","
    if rest := text[position + 1 :].strip():
        raise ConfigError(f"{path}: not JSON: behind its array comes {rest!r:.40}")


def _inside(path: Path, document: Mapping[str, Any], where: str) -> Iterator[Row]:
    """The rows of one object: of the only list of objects in it, or of its columns; else it is a row itself."""
    lists = {key: value for key, value in document.items() if isinstance(value, list)}
    tables = [key for key, value in lists.items() if value and all(isinstance(row, dict) for row in value)]
    if len(tables) == 1:
        yield from ((f"{path} {tables[0]}[{number}]", row) for number, row in enumerate(lists[tables[0]]))
    elif tables:
        raise ConfigError(f"{path} holds several lists ({', '.join(tables)}); save the one that is meant by itself")
    elif _is_columns(document):
        for number, values in enumerate(zip(*lists.values(), strict=True), start=1):
            yield f"{path} row {number}", dict(zip(lists, values, strict=True))
    else:
        yield where, document


def _is_columns(document: Mapping[str, Any]) -> bool:
    """Whether it is a table by columns: lists of equal length, of texts or numbers."""
    lists = [value for value in document.values() if isinstance(value, list)]
    plain = not any(isinstance(cell, dict | list) for column in lists for cell in column)
    return len(lists) == len(document) and len({len(column) for column in lists}) == 1 and plain


def _is_json(line: str) -> bool:
    try:
        _JSON.decode(line)
    except (ValueError, RecursionError):
        return False
    return True


def _object(text: str, where: str, path: Path) -> dict[str, Any]:
    try:
        row = _JSON.decode(text)
    except (ValueError, RecursionError) as exc:
        raise _not_json(where, exc, path, text) from exc
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: holds {type(row).__name__}, expected a JSON object")
    return row


def _not_json(where: str, exc: Exception, path: Path, text: str) -> ConfigError:
    hint = ""
    if text.startswith("<"):
        hint = "; it looks like a web page: was the file downloaded from its page instead of its address?"
    elif not format_of(path.name):
        hint = f"; read as JSON since it has none of the suffixes {', '.join(SUFFIXES)}"
    return ConfigError(f"{where}: not JSON: {exc}{hint}")


def _csv_rows(path: Path, text: str) -> Iterator[Row]:
    csv.field_size_limit(_LONGEST_CELL)
    delimiter = _SEPARATED[format_of(path.name)]
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        for row in reader:
            if None in row:
                raise ConfigError(f"{path}:{reader.line_num}: more cells than columns ({len(reader.fieldnames or ())})")
            yield f"{path}:{reader.line_num}", row
    except csv.Error as exc:
        raise ConfigError(f"{path}:{reader.line_num}: not CSV: {exc}") from exc


def _parquet_rows(path: Path, keys: Sequence[str]) -> Iterator[Row]:
    parquet, arrow = import_extra("pyarrow.parquet"), import_extra("pyarrow")
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            dotted = [name for field in file.schema_arrow for name in _dotted(field.name, field.type)]
            wanted = [name for name in names if any(key == name or key.startswith(f"{name}.") for key in keys)]
            for batch in file.iter_batches(columns=wanted or names[:1]):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path} row {number}", Columns(row, dotted)
    except (arrow.ArrowException, OSError) as exc:
        raise ConfigError(f"question file {path} can't be read as parquet: {exc}") from exc


def _dotted(name: str, kind: Any) -> list[str]:
    """A column's name, or those of what is in it."""
    inner = [kind.field(i) for i in range(kind.num_fields)] if str(kind).startswith("struct<") else []
    return [deeper for field in inner for deeper in _dotted(f"{name}.{field.name}", field.type)] or [name]


class Columns(dict[str, Any]):
    """A row of which only some columns were read. `names`: all that the file has, dotted."""

    def __init__(self, row: Mapping[str, Any], names: Sequence[str]) -> None:
        super().__init__(row)
        self.names = names
