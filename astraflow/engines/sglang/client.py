"""HTTP to one SGLang server: JSON calls and the token stream of /generate.

It knows no requests or weights. Invariant: whatever goes wrong on the way is an EngineError with the server's own
words; `RefusedError` if the server answered and said no.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Self

import aiohttp

from astraflow.errors import EngineError, RefusedError

_CONNECT_WITHIN_S = 10.0
LINE_BYTES = 1 << 23  # of one event: a server that streams cumulatively repeats all tokens and logprobs


class Client:
    """Requests to one server. Use as `async with`. Args: key: the server's API key; "" = none."""

    def __init__(self, url: str, key: str = "") -> None:
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> Self:
        """Connects at the first request."""
        self._session = aiohttp.ClientSession(
            headers=self._headers,
            # No connection is used twice: a server closes those that idle for 5 s, and a process that is busy for a
            # moment learns of it too late, when its next call is half written and can't be repeated.
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_WITHIN_S),
            read_bufsize=LINE_BYTES,
            trust_env=False,
        )
        return self

    async def close(self) -> None:
        """Ends every stream. Idempotent."""
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str, *, within_s: float) -> Any:
        """JSON of a GET."""
        return self._json(path, await self._call("GET", path, None, within_s))

    async def get_text(self, path: str, *, within_s: float) -> str:
        """Body of a GET."""
        return (await self._call("GET", path, None, within_s)).decode(errors="replace")

    async def post(self, path: str, body: Mapping[str, Any], *, within_s: float) -> Any:
        """JSON of a POST; None if the answer is empty. Raises RefusedError also for `success: false`."""
        data = await self._call("POST", path, body, within_s)
        answer = self._json(path, data) if data.strip() else None
        if isinstance(answer, dict) and answer.get("success") is False:
            raise RefusedError(200, f"{self.url}{path}: {answer.get('message') or answer}")
        return answer

    def _json(self, path: str, data: bytes) -> Any:
        try:
            return json.loads(data)
        except ValueError as exc:
            raise EngineError(f"{self.url}{path} is no SGLang server: it answered {data[:80]!r}") from exc

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None, within_s: float) -> bytes:
        assert self._session is not None, "open() comes first"
        try:
            async with (
                asyncio.timeout(within_s),
                self._session.request(method, f"{self.url}{path}", json=body) as response,
            ):
                data = await response.read()
                if response.status != 200:
                    raise RefusedError(response.status, f"{self.url}{path}: {response.status} {_words(data)}")
                return data
        except TimeoutError as exc:
            raise EngineError(f"{self.url}{path} did not answer within {within_s:g} s") from exc
        except aiohttp.ClientError as exc:
            raise EngineError(f"{self.url}{path}: {exc or type(exc).__name__}") from exc

    async def generate(self, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Events of a streamed /generate, until the server says that it is done.

        Closing the iterator closes the connection, which makes the server drop the request.
        Raises: RefusedError if the server refuses the request, EngineError if the connection ends before it is done.
        """
        assert self._session is not None, "open() comes first"
        try:
            async with self._session.post(f"{self.url}/generate", json=body) as response:
                if response.status != 200:
                    raise RefusedError(response.status, _words(await response.read()))
                while line := await response.content.readline():
                    if line.startswith(b"data:"):
                        data = line[5:].strip()
                        if data == b"[DONE]":
                            return
                        yield _event(data)
        except (aiohttp.ClientError, ValueError) as exc:
            raise EngineError(f"{self.url}/generate: {exc or type(exc).__name__}") from exc
        raise EngineError(f"{self.url}/generate ended in the middle")


def _event(data: bytes) -> dict[str, Any]:
    event = json.loads(data)
    if not isinstance(event, dict):
        raise ValueError(f"an event is {data[:100]!r}, expected an object")
    if error := event.get("error"):
        details = error if isinstance(error, dict) else {}
        raise RefusedError(int(details.get("code") or 500), str(details.get("message") or error))
    return event


def _words(data: bytes) -> str:
    """What an error page says."""
    text = data.decode(errors="replace").strip()
    try:
        answer = json.loads(text)
    except ValueError:
        return text[:500]
    if isinstance(answer, dict):
        error = answer.get("error", answer)
        return str(error.get("message", error) if isinstance(error, dict) else error)[:500]
    return text[:500]
