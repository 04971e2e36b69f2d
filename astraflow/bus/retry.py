"""Ask the server until it answers: for requests that may be repeated."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from astraflow.bus.link import Link
from astraflow.bus.session import Session
from astraflow.errors import LinkLostError, NoAnswerError

Answer = TypeVar("Answer")
RETRY_S = 0.1


async def until_answered(link: Link, ask: Callable[[Session], Awaitable[Answer]]) -> Answer:
    """`ask(session)` until it isn't cut short by a lost connection or an unready server; deadlines are the caller's."""
    while True:
        session = await link.session()
        try:
            return await ask(session)
        except LinkLostError:
            continue  # session() waits for the next one
        except NoAnswerError:
            await asyncio.sleep(RETRY_S)
