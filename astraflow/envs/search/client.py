"""What an environment searches with: an index of its own, or a server that speaks the protocol of server.py."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from astraflow.envs.arguments import import_extra
from astraflow.envs.search.corpus import Passage
from astraflow.envs.search.index import Index
from astraflow.errors import EnvError

_SAID = 200  # characters of a server's error


class Retriever(Protocol):
    """Finds passages. Each method raises EnvError if it can't look, never for a strange query."""

    async def search(self, query: str, topk: int) -> list[Passage]: ...

    async def access(self, url: str) -> Passage | None: ...

    async def close(self) -> None: ...


class LocalRetriever:
    """An index in this process, made at its first use, in a thread. Raises ConfigError then if it can't be made."""

    def __init__(self, make: Callable[[], Index]) -> None:
        self._make = make
        self._index: Index | None = None
        self._making = asyncio.Lock()

    async def search(self, query: str, topk: int) -> list[Passage]:
        index = await self._ready()
        return [passage for passage, _ in await asyncio.to_thread(index.search, query, topk)]

    async def access(self, url: str) -> Passage | None:
        index = await self._ready()
        return await asyncio.to_thread(index.access, url)

    async def close(self) -> None:
        """Nothing to free."""

    async def _ready(self) -> Index:
        async with self._making:
            if self._index is None:
                self._index = await asyncio.to_thread(self._make)
            return self._index


class RemoteRetriever:
    """A server. One connection pool, made at the first use.

    Raises: ConfigError if aiohttp isn't installed.
    """

    def __init__(self, url: str, *, within_s: float) -> None:
        self._aiohttp = import_extra("aiohttp", extra="search")
        self._url = url.rstrip("/")
        self._within_s = within_s
        self._session: Any = None

    async def search(self, query: str, topk: int) -> list[Passage]:
        results = await self._post("retrieve", {"queries": [query], "topk": topk, "return_scores": True})
        if not isinstance(results[0], list):
            raise EnvError(f"{self._url}/retrieve answered with {results!r:.80}, expected a list of documents")
        return [self._passage(each) for each in results[0]]

    async def access(self, url: str) -> Passage | None:
        results = await self._post("access", {"urls": [url]})
        return self._passage(results[0]) if results[0] else None

    async def close(self) -> None:
        """Close its connections. Idempotent."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _post(self, route: str, body: dict[str, Any]) -> list[Any]:
        if self._session is None:
            self._session = self._aiohttp.ClientSession(
                timeout=self._aiohttp.ClientTimeout(total=self._within_s), trust_env=False
            )
        where = f"{self._url}/{route}"
        try:
            async with self._session.post(where, json=body) as response:
                if response.status != 200:
                    raise EnvError(f"{where} answered {response.status}: {(await response.text())[:_SAID]}")
                answer = await response.json(content_type=None)
        except (self._aiohttp.ClientError, TimeoutError, ValueError) as exc:
            raise EnvError(f"{where} can't be asked: {str(exc) or type(exc).__name__}") from exc
        results = answer.get("result") if isinstance(answer, dict) else None
        if not isinstance(results, list) or len(results) != 1:
            raise EnvError(f"{where} answered with {answer!r:.80}, expected one result")
        return results

    def _passage(self, found: Any) -> Passage:
        document = found.get("document", found) if isinstance(found, dict) else found
        if isinstance(document, str):
            return Passage(document)
        contents = document.get("contents", document.get("page")) if isinstance(document, dict) else None
        if not isinstance(document, dict) or not isinstance(contents, str):
            raise EnvError(f"{self._url} answered with {found!r:.80}, expected a document with contents")
        return Passage(contents, str(document.get("url") or ""))
