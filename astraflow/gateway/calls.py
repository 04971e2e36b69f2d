"""The calls of one session, and the retries of clients whose answer was lost.

SDKs repeat a request that got no answer, with a counter but without a key. A repeated call joins the one in flight or
is given its answer again: sampled anew, the trajectory would hold a turn that nobody ever saw. A call whose client has
gone goes on for a while, because the retry comes within seconds. It knows no HTTP and no policies.
Invariant: one call is sampled once, however often it is asked for.
"""

import asyncio
from collections.abc import Awaitable, Callable

from astraflow.concurrency import Background
from astraflow.errors import RefusalError
from astraflow.gateway.vocabulary import Answer

RETRY_WITHIN_S = 30.0  # the SDKs wait 8 s at most before they try again
_KEPT = 16  # answers of a session; a client that retries asks for one of its newest


class _Call:
    """One call, its answer once it has one, and who waits for it."""

    def __init__(self, digest: bytes) -> None:
        self.digest = digest
        self.settled = asyncio.Event()
        self.answer: Answer | None = None
        self.error: RefusalError | None = None
        self.waiting = 0
        self.repeats = 0
        self.task: asyncio.Task[None] | None = None


class Calls:
    """Calls in the order in which they came. `background` owns what runs."""

    def __init__(self, background: Background) -> None:
        self._background = background
        self._calls: list[_Call] = []

    async def answer(self, digest: bytes, retries: int, sample: Callable[[], Awaitable[Answer]]) -> Answer:
        """The answer of a call: a repeated one's, or what `sample` returns.

        Args: digest: equal for equal requests; retries: how often the client says that it has tried.
        Raises: RefusalError if `sample` does, or if the session ends first.
        """
        call = (self._repeated(digest) if retries else None) or self._start(digest, sample)
        call.waiting += 1
        try:
            await call.settled.wait()
        finally:
            call.waiting -= 1
            if not call.waiting and not call.settled.is_set():
                asyncio.get_running_loop().call_later(RETRY_WITHIN_S, self._abandon, call)
        if call.error is not None:
            raise call.error
        assert call.answer is not None  # it is settled
        return call.answer

    def close(self, error: RefusalError) -> None:
        """The session is over: whoever waits is told so."""
        for call in self._calls:
            if not call.settled.is_set():
                call.error = error
                call.settled.set()
            if call.task is not None:
                call.task.cancel()

    def _repeated(self, digest: bytes) -> _Call | None:
        """The call that a retry means: of equal ones, one that nobody waits for and that was repeated least."""
        equal = [call for call in self._calls if call.digest == digest and call.error is None]
        found = min(equal, key=lambda call: (call.waiting, call.repeats), default=None)
        if found is not None:
            found.repeats += 1
        return found

    def _start(self, digest: bytes, sample: Callable[[], Awaitable[Answer]]) -> _Call:
        call = _Call(digest)
        settled = [each for each in self._calls if each.settled.is_set()]
        for old in settled[: max(0, len(settled) - _KEPT + 1)]:
            self._calls.remove(old)
        self._calls.append(call)
        call.task = self._background.start(self._run(call, sample))
        return call

    async def _run(self, call: _Call, sample: Callable[[], Awaitable[Answer]]) -> None:
        try:
            call.answer = await sample()
        except RefusalError as exc:
            call.error = exc
        finally:
            if call.answer is None and call.error is None:
                call.error = RefusalError(503, "this call was given up", code="given_up")
            call.settled.set()

    def _abandon(self, call: _Call) -> None:
        if not call.waiting and call.task is not None and not call.settled.is_set():
            call.task.cancel()
