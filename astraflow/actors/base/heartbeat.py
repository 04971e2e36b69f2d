"""Presence from a thread of its own: a blocked event loop can't fake it, and it names the frame that blocks.

It does not decide anything: it writes the member record under a TTL and samples the main loop's lag.
"""

import asyncio
import logging
import selectors
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable
from types import FrameType, TracebackType

from astraflow import clock
from astraflow.actors.base.context import ActorContext
from astraflow.bus import Bus, BusOptions, NatsBus, wiring
from astraflow.concurrency import wait_at_most
from astraflow.errors import BusError
from astraflow.messages import MemberState

TICK_S = 0.1
STUCK_AFTER_S = 1.0
MAX_PERIOD_S = 1.0  # so that status is never older than this
GOODBYE_S = 5.0
_FRAMES = 3
_STDLIB = sysconfig.get_path("stdlib")

_log = logging.getLogger(__name__)


class LoopClock:
    """Ticks on an event loop, so that another thread can see how late that loop is."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread_id = threading.get_ident()
        self._last = clock.monotonic()
        self._handle = loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._last = clock.monotonic()
        self._handle = self._loop.call_later(TICK_S, self._tick)

    def stop(self) -> None:
        self._handle.cancel()

    def lag_s(self) -> float:
        """Seconds that the loop is behind its tick."""
        return max(0.0, clock.monotonic() - self._last - TICK_S)

    def stuck_frame(self) -> str:
        """Where the loop's thread is right now, innermost call first, and who called the library that it is in.

        "" if the thread is gone, or waits for events: then nothing blocks it, the process was stopped or gets no CPU.
        """
        frame = sys._current_frames().get(self._thread_id)
        if frame is None or _waits_for_events(frame):
            return ""
        stack = traceback.extract_stack(frame)[::-1]
        shown = stack[:_FRAMES]
        if all(map(_is_library, shown)):
            shown[-1:] = [next((entry for entry in stack if not _is_library(entry)), shown[-1])]
        return " < ".join(f"{entry.filename}:{entry.lineno} {entry.name}" for entry in shown)


def _waits_for_events(frame: FrameType) -> bool:
    """Whether it is the event loop's own select; others' are not, e.g. that of `subprocess.run`.

    uvloop's select has no frame: what is seen is who runs the loop.
    """
    files = frame.f_code.co_filename, frame.f_back.f_code.co_filename if frame.f_back else ""
    return files[0] == asyncio.runners.__file__ or files == (selectors.__file__, asyncio.base_events.__file__)


def _is_library(entry: traceback.FrameSummary) -> bool:
    return entry.filename.startswith(_STDLIB) or "site-packages" in entry.filename


class Heartbeat:
    """Context manager that keeps an actor's member record alive from a second thread and connection."""

    def __init__(self, ctx: ActorContext, options: BusOptions, *, tell: Callable[[str], None] | None = None) -> None:
        """`tell` gets a sentence, on the running loop, when presence can't be stored and when it can again."""
        self._ctx = ctx
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._unheard = False
        self._options = options
        self._clock = LoopClock(asyncio.get_running_loop())
        self._thread_loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._stuck = False
        self._thread = threading.Thread(target=self._main, name="heartbeat", daemon=True)

    async def __aenter__(self) -> "Heartbeat":
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clock.stop()
        if self._thread.is_alive():
            self._thread_loop.call_soon_threadsafe(self._stop.set)
        await asyncio.to_thread(self._thread.join, GOODBYE_S)

    def _main(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._thread_loop) as runner:
            runner.run(self._beat_for_ever())

    async def _beat_for_ever(self) -> None:
        """Through any outage of the server, also one in which there is nothing to connect to."""
        while not self._stop.is_set():
            try:
                await self._beat()
            except BusError as exc:
                self._note(str(exc))
                await wait_at_most(self._stop, MAX_PERIOD_S)

    async def _beat(self) -> None:
        ctx, ttl_s = self._ctx, self._ctx.config.bus.member_ttl_s
        async with NatsBus.connect(self._options, ctx.bus.topology, producer=f"{ctx.name}-beat") as bus:
            while not self._stop.is_set():
                lag_s = self._clock.lag_s()
                frame = self._clock.stuck_frame() if lag_s > STUCK_AFTER_S else ""
                member = ctx.member(loop_lag_s=lag_s, stuck_frame=frame)
                try:
                    await bus.kv.put(
                        wiring.MEMBER.key(ctx.name), member, ttl_s=ttl_s, deadline_s=ttl_s
                    )  # it is old then
                    self._note("")
                    await self._tell_if_stuck(bus, lag_s, frame)
                except BusError as exc:
                    self._note(str(exc))
                await wait_at_most(self._stop, min(ttl_s / 3, MAX_PERIOD_S))
            ctx.set_state(MemberState.GONE)
            await bus.kv.put(wiring.MEMBER.key(ctx.name), ctx.member(), ttl_s=ttl_s, deadline_s=GOODBYE_S)

    def _note(self, error: str) -> None:
        """Say it when the server stops storing our presence, and when it goes on; the log has every failure."""
        if error:
            _log.info("heartbeat not heard", extra={"actor": self._ctx.name, "error": error})
        if bool(error) == self._unheard:
            return
        self._unheard = bool(error)
        why = error.partition(" s: ")[2] or error
        text = f"nats-server stores nothing: {why}" if error else "nats-server stores again"
        if self._tell is not None:
            self._loop.call_soon_threadsafe(self._tell, text)
        else:
            _log.warning("storage", extra={"actor": self._ctx.name, "text": text})

    async def _tell_if_stuck(self, bus: Bus, lag_s: float, frame: str) -> None:
        """One event for each time that the loop is blocked."""
        if frame and not self._stuck:
            text = f"the event loop of {self._ctx.name} is blocked since {lag_s:.1f} s in {frame}"
            await bus.event("warning", "loop-blocked", text, actor=self._ctx.name, frame=frame)
        self._stuck = bool(frame)
