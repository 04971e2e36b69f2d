"""What a verb prints on: an output that can't stop a run.

Characters that the output's encoding lacks are replaced. Where the output is the product (`check`, `status`) losing it
is said; where it is a view of something that goes on without it (`up`, `node`, `top`) the view ends and nothing else.
Invariant: no error of writing reaches the code that prints.
"""

import errno
import io
import os
import sys
from typing import TextIO

from astraflow.errors import OutputLostError


class Output(io.TextIOBase):
    """Standard output behind a guard. `is_view`: a failed write ends the output silently, else OutputLostError."""

    def __init__(self, stream: TextIO, *, is_view: bool) -> None:
        self._stream = stream
        self._is_view = is_view
        self._is_lost = False

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    def isatty(self) -> bool:
        return not self._is_lost and self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        """Write, or lose it. Raises: OutputLostError; BrokenPipeError if nobody reads on (`| head`)."""
        if not self._is_lost:
            try:
                self._stream.write(text)
            except OSError as exc:
                self._lose(exc)
        return len(text)

    def flush(self) -> None:
        """As `write`."""
        if not self._is_lost:
            try:
                self._stream.flush()
            except OSError as exc:
                self._lose(exc)

    def _lose(self, exc: OSError) -> None:
        self._is_lost = True
        # What the stream still buffers must not fail again when the interpreter ends.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self._stream.fileno())
        os.close(null)
        if self._is_view:
            return
        if exc.errno == errno.EPIPE:
            raise exc
        raise OutputLostError(f"the output can't be written: {exc.strerror}") from exc


def guard_output(*, is_view: bool) -> Output:
    """Put the guard in front of `sys.stdout`; returns it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    output = Output(sys.stdout, is_view=is_view)
    sys.stdout = output
    return output
