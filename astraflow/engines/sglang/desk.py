"""Who waits for the server, and who is there: requests in order of arrival, as many at the server as admission allows.

It knows no weights, only that they change: meanwhile nobody is let in (`closed`).
Invariant: a request is in exactly one place, waiting, running or ended; whoever drops one frees its place at once.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from astraflow.engines.base import EngineRequest
from astraflow.engines.sglang.completion import Account, ServerCompletion
from astraflow.engines.sglang.link import ServerLink
from astraflow.engines.streams import EngineReply
from astraflow.errors import EngineError

_ABORT_WITHIN_S = 10.0

Start = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


@dataclass(frozen=True)
class _AtServer:
    """A request that the server has."""

    completion: ServerCompletion
    reply: EngineReply
    task: "asyncio.Task[None]"


class Desk:
    """All requests of one engine. Args: start: runs a coroutine as long as the engine serves."""

    def __init__(self, link: ServerLink, account: Account, start: Start) -> None:
        self._link = link
        self._account = account
        self._start = start
        self._waiting: deque[tuple[EngineRequest, EngineReply]] = deque()
        self._running: dict[str, _AtServer] = {}
        self.closed = False

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def without_token(self) -> int:
        """Requests that the server has and hasn't begun."""
        return sum(not item.completion.has_begun for item in self._running.values())

    def ids(self) -> set[str]:
        """Of all that haven't ended."""
        return set(self._running) | {request.id for request, _ in self._waiting}

    def put(self, request: EngineRequest, reply: EngineReply) -> None:
        """At the end of the queue; `pump` lets it in."""
        self._waiting.append((request, reply))

    def pump(self) -> None:
        """Give the server what waits, as far as admission goes."""
        while self._waiting and not self.closed and len(self._running) < self._link.limit:
            self._give(*self._waiting.popleft())
            self._link.given(len(self._running))

    def _give(self, request: EngineRequest, reply: EngineReply) -> None:
        completion = ServerCompletion(self._link.client, self._account, request, reply)
        self._running[request.id] = _AtServer(completion, reply, self._start(self._complete(completion)))

    async def _complete(self, completion: ServerCompletion) -> None:
        await completion.run()
        self._running.pop(completion.request.id, None)  # gone already if the engine was stopped
        self.pump()

    def drop(self, request_id: str, version: int) -> None:
        """End one with `abort`; unknown ids are ignored."""
        running = self._running.pop(request_id, None)
        if running is not None:
            running.reply.put((), (), version, "abort")
            self._take_back(running)
            self.pump()
            return
        for item in self._waiting:
            if item[0].id == request_id:
                self._waiting.remove(item)
                item[1].put((), (), version, "abort")
                return

    def _take_back(self, running: _AtServer) -> None:
        running.task.cancel()  # closes its connection; the server notices that later than an abort
        if running.completion.server_id:
            self._start(self._abort(running.completion.server_id))

    async def _abort(self, server_id: str) -> None:
        with contextlib.suppress(EngineError):  # if the server can't hear it, whoever watches it finds out
            await self._link.client.post("/abort_request", {"rid": server_id}, within_s=_ABORT_WITHIN_S)

    def begin_anew(self) -> None:
        """What has no token yet may still wait in the server, under the cache key of the weights before."""
        for running in list(self._running.values()):
            if not running.completion.has_begun:
                self._take_back(running)
                self._give(running.completion.request, running.reply)

    def end_all(self, end: Callable[[EngineReply], None]) -> None:
        """End every reply; nothing is left."""
        for reply in [*(item.reply for item in self._running.values()), *(reply for _, reply in self._waiting)]:
            end(reply)
        self._running.clear()
        self._waiting.clear()
