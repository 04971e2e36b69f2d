"""How many requests a server gets at a time: as many as its KV memory holds, found out by trying.

Pure. It grows gently while the limit is what holds requests back and memory is free, and cuts when the server shows
pressure: requests that it queues or retracts, or memory that is nearly full. Then it waits before it grows again.
"""

from dataclasses import dataclass

FIRST = 16
_GROW = 1 / 8  # of the limit, per observation
CUT = 0.8
_ROOM_BELOW = 0.85  # of the KV memory: running requests go on growing
_FULL_ABOVE = 0.97
REST = 5  # observations after a cut
_QUEUED_FOR = 2  # observations in a row: a request that just came is queued for a moment


@dataclass(frozen=True, kw_only=True)
class Pressure:
    """What a server says about itself at one moment."""

    running: float = 0.0
    queued: float = 0.0
    kv_usage: float = 0.0  # share of the KV memory in use by requests
    retracted: float = 0.0  # requests so far that had to give their memory back
    cache_hit_rate: float = 0.0
    tokens_per_s: float = 0.0


class Admission:
    """The limit on requests at a server. Args: most: never more than this."""

    def __init__(self, most: int) -> None:
        self.limit = min(FIRST, most)
        self._most = most
        self._rest = 0
        self._queued_for = 0
        self._retracted: float | None = None
        self._peak = 0  # requests at the server since the last look
        self._excused = False

    def excuse(self) -> None:
        """The next retractions are no pressure: a swap made the server retract what ran."""
        self._excused = True

    def given(self, count: int) -> None:
        """The server has this many requests now."""
        self._peak = max(self._peak, count)

    def observe(self, pressure: Pressure, *, given: int, without_token: int) -> None:
        """Adapt to what the server says while it has `given` requests. Call it about once a second.

        A server renews its figures every so many steps, and not at all while it idles: what it calls queued is believed
        only while some requests are without a token.
        """
        self._queued_for = self._queued_for + 1 if pressure.queued and without_token else 0
        retracted = self._retracted is not None and pressure.retracted > self._retracted
        self._retracted = pressure.retracted
        if retracted and self._excused:
            retracted = self._excused = False
        if retracted or self._queued_for >= _QUEUED_FOR or pressure.kv_usage > _FULL_ABOVE:
            if not self._rest:
                self.limit = max(1, int(min(self.limit, given) * CUT))
            self._rest = REST
        elif self._rest:
            self._rest -= 1
        elif max(self._peak, given) >= self.limit and pressure.kv_usage < _ROOM_BELOW:
            self.limit = min(self._most, self.limit + max(1, int(self.limit * _GROW)))
        self._peak = given
