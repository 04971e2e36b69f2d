"""Reads question files: JSON lines or parquet, to (question, answer) pairs. It knows no grading.

GSM8K's convention is understood: of an answer that holds `####`, the part behind the last one counts.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astraflow.envs.arguments import import_extra
from astraflow.errors import ConfigError
from astraflow.models.tokenizer import utf8
from astraflow.named import nearest


@dataclass(frozen=True)
class Question:
    question: str
    answer: str


def read_questions(path: Path, *, question_key: str, answer_key: str) -> tuple[Question, ...]:
    """All questions of a .parquet file, or of a file with one JSON object per line (blank lines are skipped).

    Raises: ConfigError, naming file and line, for a missing or unreadable file, a line that is no JSON object, a
        missing key, a value that is neither text nor number, or a file without questions.
    """
    if not path.is_file():
        raise ConfigError(f"question file {path} doesn't exist (relative to {Path.cwd()})")
    rows = _parquet_rows(path, (question_key, answer_key)) if path.suffix == ".parquet" else _json_rows(path)
    questions = tuple(
        Question(_text(row, question_key, where), _text(row, answer_key, where).rpartition("####")[2].strip())
        for where, row in rows
    )
    if not questions:
        raise ConfigError(f"question file {path} holds no questions")
    return questions


def _json_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    number = 0
    try:
        with path.open(encoding="utf-8") as stream:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield f"{path}:{number}", _json_row(line, f"{path}:{number}")
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path}:{number + 1}: not UTF-8: {exc}; compressed files must be unpacked") from exc
    except OSError as exc:
        raise ConfigError(f"question file {path} can't be read: {exc}") from exc


def _json_row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"{where}: not JSON: {exc}") from exc
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: holds {type(row).__name__}, expected a JSON object")
    return row


def _parquet_rows(path: Path, keys: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    parquet = import_extra("pyarrow.parquet")
    arrow = import_extra("pyarrow")
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            for key in keys:
                if key not in names:
                    raise ConfigError(f"{path} has no column {key!r}{nearest(key, names)}")
            rows = file.read(columns=list(keys)).to_pylist()
    except (arrow.ArrowException, OSError) as exc:
        raise ConfigError(f"question file {path} can't be read as parquet: {exc}") from exc
    yield from ((f"{path} row {number}", row) for number, row in enumerate(rows, start=1))


def _text(row: dict[str, Any], key: str, where: str) -> str:
    if key not in row:
        raise ConfigError(f"{where}: has no key {key!r}{nearest(key, row)}")
    value = row[key]
    if isinstance(value, bool) or not isinstance(value, str | int | float) or not str(value).strip():
        raise ConfigError(f"{where}: {key} is {value!r:.60}, expected text or a number")
    return utf8(str(value))  # JSON may hold half a surrogate pair, which no message can
