"""What time it is, for everything in this process.

    monotonic()  seconds since some moment: every duration, deadline and age
    boottime()   the same, and it goes on while the machine sleeps: for what others may take over meanwhile
    wall()       unix seconds, for people only
    sleep()      blocks a thread

It schedules nothing. Nothing else in the package reads a clock, so that who installs another one (virtual_time.py) has
replaced them all: the clock belongs to the process, not to a context, because threads read it too (the heartbeat's, an
engine's, a learner's). Invariants: monotonic time never goes back and nobody sets it; no decision compares one
machine's wall time with another's. What travels is an age in seconds, or a limit that the server keeps.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """A source of time. All methods may be called from any thread."""

    def monotonic(self) -> float: ...

    def boottime(self) -> float: ...

    def wall(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class _SystemClock:
    """The machine's."""

    def monotonic(self) -> float:
        return time.monotonic()

    def boottime(self) -> float:
        return time.clock_gettime(_BOOTTIME)

    def wall(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


_clock: Clock = _SystemClock()


@contextmanager
def installed(clock: Clock) -> Iterator[None]:
    """Inside the block every thread of this process reads `clock`. Not for two at a time."""
    global _clock
    before, _clock = _clock, clock
    try:
        yield
    finally:
        _clock = before


def monotonic() -> float:
    """Seconds since some moment; to be subtracted from each other."""
    return _clock.monotonic()


def boottime() -> float:
    """Like `monotonic`, but time that the machine sleeps counts."""
    return _clock.boottime()


def wall() -> float:
    """Unix seconds, as people on this machine see them. Somebody may set them, and other machines differ."""
    return _clock.wall()


def sleep(seconds: float) -> None:
    """Block the calling thread."""
    _clock.sleep(seconds)
