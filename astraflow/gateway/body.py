"""Bodies of requests, read with limits and typed: what is wrong with one is said in words.

No dialect. Invariant: whatever bytes come, the result is a struct of the type that was asked for or a RefusalError.
"""

import asyncio
from typing import TypeVar

import msgspec
from aiohttp import web

from astraflow.errors import RefusalError

MAX_BODY_BYTES = 64 << 20  # an agent's history, with everything that its tools said
_BODY_WITHIN_S = 60.0

T = TypeVar("T")


async def read_body(request: web.Request) -> bytes:
    """Raises RefusalError for one that is too large or too slow."""
    try:
        async with asyncio.timeout(_BODY_WITHIN_S):
            return await request.read()
    except TimeoutError:
        raise RefusalError(408, f"the body didn't come within {_BODY_WITHIN_S:g} s", code="timeout") from None
    except web.HTTPRequestEntityTooLarge:
        text = f"the body has more than {MAX_BODY_BYTES >> 20} MiB"
        raise RefusalError(413, text, code="too_large") from None
    except web.RequestPayloadError as exc:
        raise RefusalError(400, f"the body can't be read: {exc}", code="invalid_request") from exc


def typed(body: bytes, kind: type[T]) -> T:
    """The body as a `kind`; keys that it doesn't know are ignored: each client has its own. Raises RefusalError."""
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except RecursionError:
        raise RefusalError(400, "the body is nested too deeply", code="invalid_request") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise RefusalError(400, f"the body can't be read: {exc}", code="invalid_request") from exc
