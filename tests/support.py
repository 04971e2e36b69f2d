"""Helpers that every test folder shares. No mocks: real servers, real processes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from astraflow.bus import Limits, Topology

POLL_S = 0.01


async def eventually(predicate: Callable[[], Any | Awaitable[Any]], within_s: float = 5.0) -> Any:
    """The predicate's first true value; fails the test if there is none within `within_s`."""
    value: Any = None
    try:
        async with asyncio.timeout(within_s):
            while True:
                value = predicate()
                if isinstance(value, Awaitable):
                    value = await value
                if value:
                    return value
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise AssertionError(f"not within {within_s:g} s; the last value was {value!r}") from None


def make_topology(run: str = "test", **limits: Any) -> Topology:
    """A small run: envs math and code, policies solver and verifier."""
    return Topology(
        run=run, region="local", envs=["math", "code"], policies=["solver", "verifier"], limits=Limits(**limits)
    )
