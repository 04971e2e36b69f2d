"""The gateway's HTTP: who asks, what they ask, and how they are answered, in the words of their dialect.

    POST sessions                              the run's key: take a session (pull)
    GET  task · POST reward · end · cancel     a session's key
    POST chat/completions · completions · responses · messages · messages/count_tokens · GET models

Everything stands below `/` and `/v1`, and below `/s/<key>` for clients that can send no header. It samples nothing.
Invariant: nothing is read of a request's body before its key is known, and no answer holds a traceback.
"""

import hashlib
import hmac
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import msgspec
from aiohttp import web

from astraflow.config.address import host_and_port, is_loopback
from astraflow.errors import ConfigError, RefusalError
from astraflow.gateway.anthropic_messages import CountRequest, MessagesRequest, messages_answer, messages_events
from astraflow.gateway.body import MAX_BODY_BYTES, read_body, typed
from astraflow.gateway.endings import CancelRequest, EndRequest, RewardRequest
from astraflow.gateway.openai_chat import (
    ChatRequest,
    CompletionRequest,
    chat_answer,
    chat_events,
    completion_answer,
    completion_events,
)
from astraflow.gateway.openai_responses import ResponsesRequest, responses_answer, responses_events
from astraflow.gateway.session import Session
from astraflow.gateway.sessions import Sessions
from astraflow.gateway.vocabulary import Answer, Ask

_MAX_WAIT_S = 300.0  # for a session
_BACKLOG = 1024  # hundreds of agents that begin together; beyond it, a connection waits a second to be tried again
_GRACE_S = 1.0  # for answers on their way when the server ends
_KINDS = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}

_log = logging.getLogger(__name__)

_Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]
_Whole: TypeAlias = Callable[[Answer, Ask], dict[str, Any]]
_Pieces: TypeAlias = Callable[[Answer, Ask], Iterator[bytes]]


class _Asks(Protocol):
    def ask(self) -> Ask: ...


class TakeRequest(msgspec.Struct, kw_only=True):
    """`POST sessions`. `env` "": the only one; `wait_s`: how long to wait for a session."""

    env: str = ""
    wait_s: float = 30.0


@dataclass(frozen=True, kw_only=True)
class Listening:
    """Where a gateway listens. `certificate` and `key_file` empty: plain HTTP, for this machine only."""

    address: str
    certificate: str = ""
    key_file: str = ""

    def checked(self) -> tuple[str, int]:
        """Host and port. Raises ConfigError for a public address without TLS, or half of it."""
        try:
            host, port = host_and_port(self.address)
        except ValueError as exc:
            raise ConfigError(f"gateway.listen: {exc}") from exc
        if bool(self.certificate) != bool(self.key_file):
            raise ConfigError("gateway.tls_certificate and gateway.tls_key belong together; give both or none")
        if not self.certificate and not is_loopback(host):
            raise ConfigError(
                f"gateway.listen is {self.address}, which others can reach, and keys would travel in the open; set "
                "gateway.tls_certificate and gateway.tls_key, or listen on 127.0.0.1"
            )
        return host, port


class Gateway:
    """The routes. `key`: of the run; who has it may take sessions."""

    def __init__(self, sessions: Sessions, *, key: str) -> None:
        assert key  # never open
        self._sessions = sessions
        self._key = key
        self._url = ""

    @asynccontextmanager
    async def listen(self, listening: Listening) -> AsyncIterator[str]:
        """Serve while inside. Yields the address. Raises ConfigError for one that can't be listened on."""
        host, port = listening.checked()
        context = None
        if listening.certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            try:
                context.load_cert_chain(listening.certificate, listening.key_file)
            except OSError as exc:
                raise ConfigError(f"gateway.tls_certificate {listening.certificate} can't be used: {exc}") from exc
        runner = web.AppRunner(self._app(), handler_cancellation=True, access_log=None, shutdown_timeout=_GRACE_S)
        await runner.setup()
        try:
            try:
                await web.TCPSite(runner, host, port, ssl_context=context, reuse_address=True, backlog=_BACKLOG).start()
            except OSError as exc:
                raise ConfigError(
                    f"gateway.listen = {listening.address!r} can't be used: {exc.strerror or exc}"
                ) from exc
            bound = runner.addresses[0]
            shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
            self._url = f"{'https' if context else 'http'}://{shown}:{bound[1]}"
            yield self._url
        finally:
            await runner.cleanup()

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_in_words])
        routes: list[tuple[str, str, _Handler]] = [
            ("POST", "chat/completions", self._turn(ChatRequest, chat_answer, chat_events)),
            ("POST", "completions", self._turn(CompletionRequest, completion_answer, completion_events)),
            ("POST", "responses", self._turn(ResponsesRequest, responses_answer, responses_events)),
            ("POST", "messages", self._turn(MessagesRequest, messages_answer, messages_events)),
            ("POST", "messages/count_tokens", self._count),
            ("GET", "models", self._models),
            ("GET", "task", self._task),
            ("POST", "reward", self._reward),
            ("POST", "end", self._end),
            ("POST", "cancel", self._cancel),
        ]
        for prefix in ("", "/v1", "/s/{key}", "/s/{key}/v1"):
            for method, path, handler in routes:
                app.router.add_route(method, f"{prefix}/{path}", handler)
        for prefix in ("", "/v1"):
            app.router.add_route("POST", f"{prefix}/sessions", self._take)
        return app

    def _turn(self, kind: type[_Asks], whole: _Whole, in_pieces: _Pieces) -> _Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            session = self._session(request)
            session.check_open()  # before its body
            body = await read_body(request)
            ask = typed(body, kind).ask()
            answer = await session.answer(
                ask,
                digest=hashlib.blake2b(request.path.encode() + b"\n" + body, digest_size=16).digest(),
                retries=_retries(request),
                client=request.headers.get("User-Agent", ""),
            )
            if not ask.stream:
                return _json(whole(answer, ask))
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
            await response.prepare(request)
            for piece in in_pieces(answer, ask):
                await response.write(piece)
            await response.write_eof()
            return response

        return handle

    async def _count(self, request: web.Request) -> web.StreamResponse:
        session = self._session(request)
        asked = typed(await read_body(request), CountRequest)
        tokens = await session.count(asked.model, asked.history(), asked.offered())
        return _json({"input_tokens": tokens})

    async def _models(self, request: web.Request) -> web.StreamResponse:
        models = self._session(request).models
        listed = [{"id": name, "object": "model", "created": 0, "owned_by": "astraflow"} for name in models]
        return _json({"object": "list", "data": listed, "has_more": False})

    async def _task(self, request: web.Request) -> web.StreamResponse:
        return _json(self._session(request).told())

    async def _reward(self, request: web.Request) -> web.StreamResponse:
        session = self._session(request)
        asked = typed(await read_body(request), RewardRequest)
        session.end(asked.ending(session.asked, session.models))
        return _json({"ended": True})

    async def _end(self, request: web.Request) -> web.StreamResponse:
        session = self._session(request)
        session.end(typed(await read_body(request), EndRequest).ending())
        return _json({"ended": True})

    async def _cancel(self, request: web.Request) -> web.StreamResponse:
        session = self._session(request)
        session.end(typed(await read_body(request), CancelRequest).ending())
        return _json({"ended": True})

    async def _take(self, request: web.Request) -> web.StreamResponse:
        if not hmac.compare_digest(_key_of(request).encode(), self._key.encode()):
            raise RefusalError(401, "sessions are given for the run's key", code="invalid_key")
        asked = typed(await read_body(request), TakeRequest)
        session = await self._sessions.take(
            asked.env,
            within_s=min(max(asked.wait_s, 0.0), _MAX_WAIT_S),
            idempotency_key=request.headers.get("Idempotency-Key", ""),
        )
        addresses = {"base_url": f"{self._url}/v1", "session_url": f"{self._url}/s/{session.key}"}
        return _json(session.told() | addresses | {"key": session.key})

    def _session(self, request: web.Request) -> Session:
        return self._sessions.find(_key_of(request))


def _key_of(request: web.Request) -> str:
    """Raises RefusalError if there is none."""
    scheme, _, bearer = request.headers.get("Authorization", "").partition(" ")
    named: str = request.match_info.get("key", "")
    key = named or request.headers.get("x-api-key", "") or (bearer.strip() if scheme.lower() == "bearer" else "")
    if not key:
        text = "a key is needed: Authorization: Bearer, x-api-key, or /s/<key> in the address"
        raise RefusalError(401, text, code="invalid_key")
    return key


def _retries(request: web.Request) -> int:
    """How often the client says that it has tried before."""
    text = request.headers.get("x-stainless-retry-count", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 9 else 0


def _json(data: dict[str, Any], *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=msgspec.json.encode(data), status=status, headers=headers, content_type="application/json")


def _refused(request: web.Request, exc: RefusalError) -> web.Response:
    """An error in the dialect of the path. SDKs try again for some statuses, unless they are told not to."""
    headers = {"x-should-retry": "true" if exc.retry_after_s else "false"}
    if exc.retry_after_s:
        headers["Retry-After"] = f"{exc.retry_after_s:g}"
    kind = _KINDS.get(exc.status, "invalid_request_error" if exc.status < 500 else "api_error")
    error: dict[str, Any] = {"type": kind, "message": str(exc)}
    if "/messages" in request.path:
        return _json({"type": "error", "error": error}, status=exc.status, headers=headers)
    return _json({"error": error | {"code": exc.code, "param": None}}, status=exc.status, headers=headers)


@web.middleware
async def _in_words(request: web.Request, handler: _Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except RefusalError as exc:
        _log.debug("refused", extra={"path": request.path, "status": exc.status, "why": str(exc)})
        return _refused(request, exc)
    except web.HTTPException as exc:
        text = f"{request.method} {request.path} is not offered here: {exc.reason}"
        return _refused(request, RefusalError(exc.status, text[:500], code="not_found"))
