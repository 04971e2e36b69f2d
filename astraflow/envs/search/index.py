"""Finds passages by their words (BM25), with tantivy: in memory, or in a folder that processes and starts share.

Queries are whatever a model writes, so they are read as words and nothing else: no operators, no fields. Thread-safe.
"""

import json
import re
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from astraflow.envs.arguments import import_extra
from astraflow.envs.search.corpus import Passage

_HEAP_BYTES = 64 << 20
_WORDS = 64  # of a query
_NOT_WORDS = re.compile(r"[^\w]+")
_MARK = "astraflow.json"


class Index:
    """An index of passages.

    Args:
        folder: where it is kept; None = in memory. One that is there for the same `corpus` is opened and not built.
        corpus: a name that changes with the passages.

    Raises: ConfigError if tantivy isn't installed.
    """

    def __init__(self, passages: Iterable[Passage], *, folder: Path | None = None, corpus: str = "") -> None:
        tantivy = import_extra("tantivy", extra="search")
        self._tantivy = tantivy
        builder = tantivy.SchemaBuilder()
        builder.add_text_field("contents", stored=True, tokenizer_name="en_stem")
        builder.add_text_field("url", stored=True, tokenizer_name="raw")
        self._schema = builder.build()
        if folder is None:
            self._index = self._built(tantivy.Index(self._schema), passages)
        else:
            if not _is_of(folder, corpus):
                self._build_in(folder, passages, corpus)
            self._index = tantivy.Index.open(str(folder))
        self._index.reload()
        self._searcher = self._index.searcher()

    def __len__(self) -> int:
        return int(self._searcher.num_docs)

    def search(self, query: str, topk: int) -> list[tuple[Passage, float]]:
        """The best passages with their scores, best first; fewer where fewer have any of the words."""
        words = _NOT_WORDS.sub(" ", query.lower()).split()[:_WORDS]
        if not words or topk < 1:
            return []
        parsed, _ = self._index.parse_query_lenient(" ".join(words), ["contents"])
        return [(self._passage(address), float(score)) for score, address in self._searcher.search(parsed, topk).hits]

    def access(self, url: str) -> Passage | None:
        """The passage of this address; None if there is none."""
        hits = self._searcher.search(self._tantivy.Query.term_query(self._schema, "url", url), 1).hits if url else ()
        return self._passage(hits[0][1]) if hits else None

    def _passage(self, address: Any) -> Passage:
        stored = self._searcher.doc(address)
        return Passage(stored["contents"][0], stored["url"][0])

    def _build_in(self, folder: Path, passages: Iterable[Passage], corpus: str) -> None:
        """Beside it, then renamed: a folder that is there is whole."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        self._built(self._tantivy.Index(self._schema, path=str(building)), passages)
        (building / _MARK).write_text(json.dumps({"corpus": corpus}), encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        building.rename(folder)

    def _built(self, index: Any, passages: Iterable[Passage]) -> Any:
        writer = index.writer(heap_size=_HEAP_BYTES, num_threads=1)
        for each in passages:
            writer.add_document(self._tantivy.Document(contents=[each.contents], url=[each.url]))
        writer.commit()
        writer.wait_merging_threads()
        return index


def _is_of(folder: Path, corpus: str) -> bool:
    try:
        mark = json.loads((folder / _MARK).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(mark, dict) and mark.get("corpus") == corpus


def corpus_name(files: Sequence[Path]) -> str:
    """A name that changes when a file does."""
    return " ".join(f"{each.resolve()}:{each.stat().st_size}:{each.stat().st_mtime_ns}" for each in files)
