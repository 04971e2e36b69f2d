"""Passages, and how files of them are read."""

from collections.abc import Iterator
from dataclasses import dataclass

from astraflow.envs.presets import source
from astraflow.envs.question_files import find_sources, read_rows
from astraflow.errors import ConfigError

_TEXT, _URL, _TITLE = ("contents", "text", "passage"), ("url", "id", "_id", "docid"), ("title",)


@dataclass(frozen=True)
class Passage:
    """A piece of text that can be found. `url` tells it from all others; "" = it can't be opened by itself."""

    contents: str
    url: str = ""


def read_corpus(path: str | list[str]) -> Iterator[Passage]:
    """The passages of files: a key `contents` or `text`, and where there is one a `title` and a `url` or `id`.

    Raises: ConfigError, with file and line, for rows without text.
    """
    keys = (*_TEXT, *_URL, *_TITLE)
    for file in find_sources(source(path=path, question_key=_TEXT[0], answer_key=_URL[0])):
        for where, row in read_rows(file, keys, lambda row: any(key in row for key in _TEXT)):
            text = next((row[key] for key in _TEXT if isinstance(row.get(key), str)), "")
            if not text.strip():
                raise ConfigError(
                    f"{where}: has no text under {', '.join(_TEXT)}; it holds {', '.join(row) or 'nothing'}"
                )
            title = next((str(row[key]) for key in _TITLE if row.get(key)), "")
            url = next((str(row[key]) for key in _URL if row.get(key) is not None), "")
            yield Passage(f"{title}\n{text}" if title and not text.startswith(title) else text, url)
