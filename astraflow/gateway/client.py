"""Sessions for scripts that play them: `async for session in af.sessions("game"): …`.

It talks to no policy: the script does, with whatever client it likes, at `session.base_url` with `session.key`. It
needs no package beyond the standard library, and keeps no state between sessions.
Invariant: a session that the script leaves without an ending is cancelled.
"""

import asyncio
import http.client
import os
import urllib.error
import urllib.request
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from astraflow.errors import ConfigError, RefusalError

_WAIT_S = 30.0  # of one request for a session
_ANSWER_S = 30.0  # more, until a rollout that doesn't answer is taken for dead


class Address(msgspec.Struct, frozen=True):
    """Where a gateway is, and the key that opens it. A rollout process writes it into its run folder."""

    url: str
    key: str


@dataclass(kw_only=True)
class TakenSession:
    """One episode to play."""

    key: str
    base_url: str  # for an OpenAI client
    session_url: str
    env: str
    id: str
    payload: dict[str, Any]
    messages: list[dict[str, str]]  # what the environment asks; empty if it asks nothing by itself
    models: list[str]
    ended: bool = False

    async def reward(
        self,
        reward: float | Mapping[str, float],
        *,
        parts: Mapping[str, float] | None = None,
        correct: float | None = None,
    ) -> None:
        """End it with a reward, or one per policy or role. Raises RefusalError."""
        name = "rewards" if isinstance(reward, Mapping) else "reward"
        await self._end("reward", {name: reward, "parts": dict(parts or {}), "correct": correct})

    async def end(self, answer: str | None = None) -> None:
        """End it; the environment grades the answer, or else the newest reply. Raises RefusalError."""
        await self._end("end", {"answer": answer})

    async def cancel(self, reason: str) -> None:
        """End it without a reward: it couldn't be played. Raises RefusalError."""
        await self._end("cancel", {"reason": reason})

    async def _end(self, how: str, body: Mapping[str, Any]) -> None:
        await asyncio.to_thread(_post, f"{self.session_url}/{how}", self.key, body, {})
        self.ended = True


def find_gateways(folder: str | Path = "") -> list[Address]:
    """Addresses in a run folder, of rollouts that have been there; else ASTRAFLOW_GATEWAY_URL and _KEY.

    Raises: ConfigError if there is none.
    """
    if not folder:
        url, key = os.environ.get("ASTRAFLOW_GATEWAY_URL", ""), os.environ.get("ASTRAFLOW_GATEWAY_KEY", "")
        if not url or not key:
            raise ConfigError("give the run's folder, or set ASTRAFLOW_GATEWAY_URL and ASTRAFLOW_GATEWAY_KEY")
        return [Address(url, key)]
    files = sorted((Path(folder) / "gateway").glob("*.json"))
    if not files:
        raise ConfigError(f"no rollout of the run in {folder} has opened a gateway (yet): does it run on this machine?")
    return [msgspec.json.decode(file.read_bytes(), type=Address) for file in files]


async def sessions(env: str = "", *, folder: str | Path = "") -> AsyncIterator[TakenSession]:
    """Sessions, one after another, for as long as a rollout answers; several such loops may run side by side.

    Args: env: an environment of the run; "" = the only one that is played so. folder: the run's; see `find_gateways`.
    Raises: ConfigError if there is no gateway; RefusalError for a wrong key or an unknown environment.
    """
    addresses = find_gateways(folder)
    while addresses:
        answered = False
        for address in addresses:
            session = await asyncio.to_thread(_take, address, env)
            answered = answered or session is not _SILENT
            if isinstance(session, TakenSession):
                try:
                    yield session
                finally:
                    await _give_up(session)
        if not answered:
            return
        with suppress(ConfigError):  # a rollout that leaves takes its address away, one that is new has another
            addresses = find_gateways(folder)


async def _give_up(session: TakenSession) -> None:
    """Nothing if it has ended, also if the gateway has gone."""
    if not session.ended:
        with suppress(RefusalError, OSError):
            await session.cancel("its script went on without an ending")


class _Nothing(Enum):
    SILENT = "nobody listens there any more"
    NONE = "no session is free"


_SILENT = _Nothing.SILENT


def _take(address: Address, env: str) -> TakenSession | _Nothing:
    """Raises RefusalError for what trying again doesn't help."""
    idempotency = {"Idempotency-Key": uuid.uuid4().hex}  # one whose answer is lost must not wait for its deadline
    body = {"env": env, "wait_s": _WAIT_S}
    try:
        try:
            answer = _post(f"{address.url}/sessions", address.key, body, idempotency)
        except ConnectionResetError:
            answer = _post(f"{address.url}/sessions", address.key, body, idempotency)
    except RefusalError as exc:
        if exc.status == 429:
            return _Nothing.NONE
        if exc.status >= 500:
            return _SILENT
        raise
    except OSError:
        return _SILENT
    return msgspec.convert(answer, TakenSession)


def _post(url: str, key: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
    """Raises RefusalError for an answer that says no, OSError if there is none."""
    request = urllib.request.Request(
        url,
        data=msgspec.json.encode(body),
        headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json", **headers},
    )
    try:
        with urllib.request.urlopen(request, timeout=_WAIT_S + _ANSWER_S) as answer:
            return msgspec.json.decode(answer.read())
    except urllib.error.HTTPError as exc:
        error = _error_in(exc.read())
        raise RefusalError(exc.code, error.message or exc.reason, code=error.code) from exc
    except http.client.HTTPException as exc:
        raise ConnectionResetError(f"{url} ended its answer: {exc!r}") from exc


class _Error(msgspec.Struct):
    message: str = ""
    code: str = "error"


class _Body(msgspec.Struct):
    error: _Error


def _error_in(body: bytes) -> _Error:
    try:
        return msgspec.json.decode(body, type=_Body).error
    except msgspec.DecodeError:
        return _Error()
