"""A search index over HTTP, so that many rollouts share one.

    POST /retrieve  {"queries": […], "topk": 3, "return_scores": true}
                    -> {"result": [[{"document": {"contents", "url"}, "score"}, …], …]}, bare documents without scores
    POST /access    {"urls": […]} -> {"result": [{"contents", "url"} or null, …]}
    GET /health     -> {"passages": n}

The protocol is that of Search-R1's and ASearcher's servers. Requests that come within a moment are answered by one trip
to a thread. Who can reach it can search: it has no keys and changes nothing.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from astraflow.envs.search.corpus import Passage
from astraflow.envs.search.index import Index
from astraflow.errors import ConfigError

_MERGE_S = 0.005
_MOST_MERGED = 512  # queries
_MOST_QUERIES, _MOST_TOPK = 1024, 100  # of one request
_MOST_BYTES = 4 << 20
_WAITING = 4096  # requests

Found = list[tuple[Passage, float]]


@dataclass(frozen=True)
class _Request:
    queries: Sequence[str]
    topk: int
    answer: "asyncio.Future[list[Found]]"


class RetrievalServer:
    """The routes, and the one task that searches. `topk`: where a request names none."""

    def __init__(self, index: Index, *, topk: int = 3) -> None:
        self._index = index
        self._topk = topk
        self._waiting: asyncio.Queue[_Request] = asyncio.Queue(_WAITING)
        self.trips = 0  # to a thread

    @contextlib.asynccontextmanager
    async def listen(self, host: str, port: int) -> AsyncIterator[str]:
        """Serve while inside. Yields the address. Raises ConfigError for one that can't be listened on."""
        app = web.Application(client_max_size=_MOST_BYTES)
        app.add_routes(
            [
                web.post("/retrieve", self._retrieve),
                web.post("/access", self._access),
                web.get("/health", self._health),
            ]
        )
        runner = web.AppRunner(app, access_log=None)
        async with asyncio.TaskGroup() as tasks:
            searching = tasks.create_task(self._search())
            await runner.setup()
            try:
                try:
                    await web.TCPSite(runner, host, port, reuse_address=True).start()
                except OSError as exc:
                    raise ConfigError(f"{host}:{port} can't be listened on: {exc.strerror or exc}") from exc
                bound = runner.addresses[0]
                shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
                yield f"http://{shown}:{bound[1]}"
            finally:
                searching.cancel()
                await runner.cleanup()

    async def _search(self) -> None:
        """Take what waits, search for all of it at once, answer."""
        while True:
            requests = [await self._waiting.get()]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_MERGE_S):
                    while sum(len(each.queries) for each in requests) < _MOST_MERGED:
                        requests.append(await self._waiting.get())
            self.trips += 1
            found = await asyncio.to_thread(self._find, requests)
            for request, results in zip(requests, found, strict=True):
                if not request.answer.done():  # its client may have left
                    request.answer.set_result(results)

    def _find(self, requests: Sequence[_Request]) -> list[list[Found]]:
        return [[self._index.search(query, each.topk) for query in each.queries] for each in requests]

    async def _retrieve(self, request: web.Request) -> web.Response:
        body = await _body(request)
        queries, topk = _texts(body, "queries"), body.get("topk", self._topk)
        if not isinstance(topk, int) or not 1 <= topk <= _MOST_TOPK:
            raise _refused(f"topk is {topk!r}, expected 1 to {_MOST_TOPK}")
        answer: asyncio.Future[list[Found]] = asyncio.get_running_loop().create_future()
        await self._waiting.put(_Request(queries, topk, answer))
        results: list[list[Any]] = [[_document(each) for each, _ in found] for found in await answer]
        if body.get("return_scores"):
            results = [
                [{"document": one, "score": score} for one, (_, score) in zip(documents, found, strict=True)]
                for documents, found in zip(results, answer.result(), strict=True)
            ]
        return web.json_response({"result": results})

    async def _access(self, request: web.Request) -> web.Response:
        urls = _texts(await _body(request), "urls")
        pages = await asyncio.to_thread(lambda: [self._index.access(url) for url in urls])
        return web.json_response({"result": [_document(each) if each else None for each in pages]})

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({"passages": len(self._index)})


def _document(passage: Passage) -> dict[str, str]:
    return {"contents": passage.contents, "url": passage.url}


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        body = json.loads(await request.read())
    except (ValueError, RecursionError) as exc:
        raise _refused(f"not JSON: {exc}") from exc
    if not isinstance(body, dict):
        raise _refused("expected a JSON object")
    return body


def _texts(body: dict[str, Any], key: str) -> list[str]:
    texts = body.get(key)
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        raise _refused(f"{key} is {texts!r:.60}, expected a list of texts")
    if len(texts) > _MOST_QUERIES:
        raise _refused(f"{len(texts)} {key}, expected at most {_MOST_QUERIES}")
    return texts


def _refused(why: str) -> web.HTTPBadRequest:
    return web.HTTPBadRequest(text=json.dumps({"error": why}), content_type="application/json")
