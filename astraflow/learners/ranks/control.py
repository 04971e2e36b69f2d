"""The lines between a lead and its followers: commands one way, beats both ways, and the end of all when one goes.

One TCP connection for each follower, apart from the group that computes: a wait for a batch may take hours, and a
computing rank is deaf. A closed line is a rank that has died, seen within milliseconds whatever the others do; a silent
one is a rank that is frozen. No torch here, and no pickle: frames of msgpack.

    follower ── hello(token) ──▶ lead          lead ── place(rank, size, …) ──▶ follower     then
    lead ── command(op, payload) ──▶ follower  both ── beat ──▶ each other, every BEAT_S

Not here: what a command does (`lead.py`, `follower.py`). Invariant: a line that has ended or is silent is told exactly
once, to `lost`.
"""

import contextlib
import queue
import socket
import threading
from collections.abc import Callable

import msgspec

BEAT_S = 0.5
_MOST_BYTES = 1 << 34  # of one frame


class Command(msgspec.Struct, frozen=True):
    """What all ranks do next; "" is a beat."""

    op: str
    payload: bytes = b""


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """A follower that is there."""

    token: str
    pid: int


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Which rank it is, and of what."""

    rank: int
    size: int
    port: int  # where the computing group meets
    silent_s: float
    recipe: bytes  # of the learner, see lead.py


def send(line: socket.socket, message: msgspec.Struct) -> None:
    """One frame. Raises OSError."""
    data = msgspec.msgpack.encode(message)
    line.sendall(len(data).to_bytes(8, "little") + data)


def receive(line: socket.socket) -> bytes:
    """One frame. Raises OSError: the line has ended, or was silent for as long as its timeout."""
    size = int.from_bytes(_exactly(line, 8), "little")
    if size > _MOST_BYTES:
        raise OSError(f"a frame of {size} bytes")
    return bytes(_exactly(line, size))


def _exactly(line: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        count = line.recv_into(view[done:])
        if not count:
            raise ConnectionResetError("closed")
        done += count
    return data


class Line:
    """One end, once both know their places. Threads of its own read and beat until it is closed.

    Args:
        lost: called in a thread of this line, with why it ended: "closed" or "silent".
    """

    def __init__(self, line: socket.socket, *, silent_s: float, lost: Callable[[str], None]) -> None:
        line.settimeout(silent_s)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._line, self._lost = line, lost
        self._turn = threading.Lock()
        self._closed = threading.Event()
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        for work in (self._read, self._beat):
            threading.Thread(target=work, daemon=True, name=f"ranks-{work.__name__}").start()

    def command(self, op: str, payload: bytes = b"") -> None:
        """To the other end. A line that has ended is told of by `lost`."""
        with self._turn, contextlib.suppress(OSError):
            send(self._line, Command(op, payload))

    def next(self) -> Command:
        """From the other end; waits for one."""
        return self._commands.get()

    def stop(self) -> None:
        """Tell the other end to go; that it then goes is told to nobody."""
        self._closed.set()
        self.command("stop")

    def close(self) -> None:
        self._closed.set()
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)
        self._line.close()

    def _read(self) -> None:
        try:
            while True:
                command = msgspec.msgpack.decode(receive(self._line), type=Command)
                if command.op:
                    self._commands.put(command)
        except TimeoutError:
            self._end("silent")
        except (OSError, msgspec.MsgspecError):
            self._end("closed")

    def _end(self, why: str) -> None:
        if not self._closed.is_set():
            self._lost(why)

    def _beat(self) -> None:
        while not self._closed.wait(BEAT_S):
            if self._turn.acquire(blocking=False):  # a command on its way says as much
                try:
                    send(self._line, Command(""))
                except OSError:
                    return  # the reader tells
                finally:
                    self._turn.release()
