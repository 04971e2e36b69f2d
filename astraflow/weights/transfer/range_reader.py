"""Reads ranges of a full's payload from one place: a file, or a trainer's HTTP server. Blocking, for threads.

It knows no bus and checks no digest (`reader.py`). Invariant: what can't be read raises PlaceError with a sentence; a
view that was filled holds exactly the bytes of its range, as the place has them.
"""

import http.client
import os
import ssl
import stat
import threading
from collections.abc import Callable, Iterator
from urllib.parse import SplitResult, urlsplit

from astraflow.errors import PlaceError
from astraflow.messages import Place

TIMEOUT_S = 10.0  # of a silent server
TRIES = 4  # in a row without a byte
RETRY_S = 0.1  # before the second try; doubles
PIECE_BYTES = 1 << 20  # read between two looks at `stop`

ReadRange = Callable[[int, memoryview, threading.Event], None]
"""`(start, view, stop)`: fill `view` with the payload from byte `start` on; give up soon after `stop` is set."""


def range_reader(place: Place, size_bytes: int) -> ReadRange:
    """How to read from `place`, which must hold `size_bytes`. Raises PlaceError for a transport that isn't known."""
    if place.transport == "file":
        return _FileRanges(place.address, size_bytes)
    if place.transport == "http":
        return _HttpRanges(place)
    raise PlaceError(f"transport {place.transport!r} isn't known here; is this node's AstraFlow older?")


class _FileRanges:
    def __init__(self, path: str, size_bytes: int) -> None:
        self._path = path
        self._size_bytes = size_bytes

    def __call__(self, start: int, view: memoryview, stop: threading.Event) -> None:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO would block
            try:
                self._read(descriptor, start, view, stop)
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as exc:  # ValueError: a NUL in the path
            raise PlaceError(f"file {self._path} can't be read: {getattr(exc, 'strerror', None) or exc}") from exc

    def _read(self, descriptor: int, start: int, view: memoryview, stop: threading.Event) -> None:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size != self._size_bytes:
            raise PlaceError(f"file {self._path} has {status.st_size} bytes, expected {self._size_bytes}")
        got = 0
        while got < len(view) and not stop.is_set():
            count = os.preadv(descriptor, [view[got : got + PIECE_BYTES]], start + got)
            if not count:
                raise PlaceError(f"file {self._path} became shorter while it was read")
            got += count


class _HttpRanges:
    """One connection per range, so that nothing is shared between threads. Whatever came before a cut is kept."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._url = _split(place.address)
        self._tls = _trust(place) if self._url.scheme == "https" else None

    def __call__(self, start: int, view: memoryview, stop: threading.Event) -> None:
        got, tries = 0, 0
        while got < len(view) and not stop.is_set():
            before = got
            try:
                for count in self._pieces(start + got, view[got:]):
                    got += count
                    if stop.is_set():
                        return
            except (OSError, http.client.HTTPException, ValueError) as exc:
                tries = 1 if got > before else tries + 1
                if tries >= TRIES:
                    raise PlaceError(f"{self._place.address} can't be read: {exc or type(exc).__name__}") from exc
                stop.wait(RETRY_S * 2 ** (tries - 1))

    def _pieces(self, start: int, view: memoryview) -> Iterator[int]:
        """Fill `view` from the front; yields how many bytes came each time."""
        connection = self._connect()
        try:
            wanted = f"bytes={start}-{start + len(view) - 1}"
            headers = {"Authorization": f"Bearer {self._place.token}", "Range": wanted}
            connection.request("GET", self._url.path, headers=headers)
            response = connection.getresponse()
            if response.status != http.HTTPStatus.PARTIAL_CONTENT:
                raise PlaceError(f"{self._place.address} answers {response.status} {response.reason}")
            if not (response.getheader("Content-Range") or "").startswith(f"bytes {start}-"):
                raise http.client.HTTPException(f"another range came than {wanted}")  # or the headers were cut off
            got = 0
            while got < len(view):
                count = response.readinto(view[got : got + PIECE_BYTES])
                if not count:
                    raise ConnectionError("the connection ended early")
                got += count
                yield count
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        if self._tls is not None:
            return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=self._tls)
        return http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)


def _split(address: str) -> SplitResult:
    try:
        url = urlsplit(address)
        known = url.scheme in ("http", "https") and bool(url.hostname) and url.port is not None
    except ValueError:
        known = False
    if not known:
        raise PlaceError(f"address {address!r} is not like http://HOST:PORT/NAME")
    return url


def _trust(place: Place) -> ssl.SSLContext:
    """Whoever has the key of the manifest's certificate, whatever it is called: the manifest came over the bus."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    try:
        context.load_verify_locations(cadata=place.certificate)
    except (ssl.SSLError, ValueError) as exc:
        raise PlaceError(f"the certificate of {place.address} in its manifest can't be read") from exc
    return context
