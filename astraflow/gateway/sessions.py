"""The sessions of one rollout process: found by their keys, and handed to clients that ask for one.

A client that waits is demand: the rollout pulls a task of its environment only then, so that no episode's time runs
while nobody plays it. It plays nothing. Invariant: a session is handed out once, unless the same idempotency key asks.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Sequence

from astraflow.errors import RefusalError
from astraflow.gateway.session import Session
from astraflow.named import nearest

_MAX_OVER = 4096  # sessions that have ended, remembered for what to say
_MAX_WAITING = 4096  # clients that wait for a session


class Sessions:
    """Open sessions by key. `served`: environments whose tasks clients may ask for."""

    def __init__(self) -> None:
        self.served: set[str] = set()
        self._by_key: dict[str, Session] = {}
        self._over: OrderedDict[str, Session] = OrderedDict()
        self._taken: OrderedDict[str, Session] = OrderedDict()  # by idempotency key
        self._offers: dict[str, deque[Session]] = {}  # per environment, taken by nobody yet
        self._waiting: list[tuple[str, asyncio.Future[Session]]] = []
        self._asked = asyncio.Event()  # somebody has begun to wait

    def __len__(self) -> int:
        return len(self._by_key)

    def find(self, key: str) -> Session:
        """The session of a key, over or not. Raises RefusalError."""
        session = self._by_key.get(key) or self._over.get(key)
        if session is None:
            raise RefusalError(401, "no session has this key; take a session, or use its own key", code="invalid_key")
        return session

    def add(self, session: Session) -> None:
        self._by_key[session.key] = session

    def remove(self, session: Session, why: str) -> None:
        """It is over; its key is remembered for a while."""
        session.close(why)
        self._by_key.pop(session.key, None)
        self._over[session.key] = session
        if len(self._over) > _MAX_OVER:
            self._over.popitem(last=False)
        if (offers := self._offers.get(session.task.env)) and session in offers:
            offers.remove(session)

    def offer(self, session: Session) -> None:
        """Give it to who waits longest, else to who comes next."""
        for env, future in self._waiting:
            if env == session.task.env and not future.done():
                future.set_result(session)
                return
        self._offers.setdefault(session.task.env, deque()).append(session)

    async def take(self, env: str, *, within_s: float, idempotency_key: str = "") -> Session:
        """A session of the environment. Raises RefusalError: 404 unknown, 429 none within the time."""
        if idempotency_key and idempotency_key in self._taken:
            return self._taken[idempotency_key]
        session = await self._next(self._named(env), within_s)
        if idempotency_key:
            self._taken[idempotency_key] = session
            if len(self._taken) > _MAX_OVER:
                self._taken.popitem(last=False)
        return session

    async def _next(self, env: str, within_s: float) -> Session:
        if offers := self._offers.get(env):
            return offers.popleft()
        if len(self._waiting) >= _MAX_WAITING:
            raise RefusalError(429, f"{_MAX_WAITING} clients wait for sessions", code="no_session", retry_after_s=5.0)
        future: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
        entry = (env, future)
        self._waiting.append(entry)
        self._asked.set()
        try:
            async with asyncio.timeout(within_s):
                return await future
        except TimeoutError:
            if future.done() and not future.cancelled():  # it came in the same moment
                return future.result()
            text = f"no session of environment {env} is free; it is played as training asks for it"
            raise RefusalError(429, text, code="no_session", retry_after_s=1.0) from None
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.offer(future.result())
            raise
        finally:
            self._waiting.remove(entry)

    def demand(self, env: str) -> int:
        """Clients that wait for a session of the environment."""
        return sum(1 for name, future in self._waiting if name == env and not future.done())

    async def demanded(self, env: str) -> int:
        """Wait until somebody waits for a session of the environment; how many do."""
        while not (waiting := self.demand(env)):
            self._asked.clear()
            await self._asked.wait()
        return waiting

    def _named(self, env: str) -> str:
        served: Sequence[str] = sorted(self.served)
        if not env and len(served) == 1:
            return served[0]
        if env not in self.served:
            raise RefusalError(
                404,
                f"no sessions of environment {env!r} are given here{nearest(env, served)}; there are "
                f"{', '.join(served) or 'none'}",
                code="env_not_found",
            )
        return env
