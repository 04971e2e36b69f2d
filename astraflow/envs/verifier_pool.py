"""A pool of killable processes that judge mathematical answers with math-verify.

Why processes: an answer like `10^{10^{10}}` hangs sympy, math-verify's own timeout is a SIGALRM that works in no thread
and destroys the caller's timers, and memory has to be bounded too. A worker that doesn't answer in
time is killed and replaced; the next job finds a fresh one. Plain child processes rather than `multiprocessing`, whose
children import the caller's `__main__` again: a user's script without a main guard would run once per worker.

Invariant: `verify` returns within the time that it waits for a worker plus about a second plus the deadline, and what
could not be judged is an error, never "wrong".
"""

import importlib.util
import json
import os
import queue
import selectors
import subprocess
import sys
import threading
from collections import OrderedDict
from contextlib import suppress

from astraflow import clock
from astraflow.envs.answers import MAX_TEXT_CHARS
from astraflow.errors import ConfigError, EnvError
from astraflow.extras import install_hint

_START_S = 60.0  # for importing math-verify on a busy machine
_MEMORY_BYTES = 1_500_000_000
_CACHE_SIZE = 8192


class VerifierPool:
    """Judges answers. Thread-safe; processes start at the first use.

    Args:
        workers: processes at most.
        deadline_s: per answer; an honest one takes 1 ms, rarely 0.2 s.

    Raises:
        ConfigError: math-verify isn't installed.
    """

    def __init__(self, *, workers: int = 2, deadline_s: float = 3.0) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise ConfigError(f"this environment needs math-verify; run: {install_hint('envs')}")
        self._deadline_s = deadline_s
        self._places: queue.Queue[_Worker | None] = queue.Queue()  # None: a place whose process isn't running
        for _ in range(workers):
            self._places.put(None)
        self._workers = workers
        self._cache: OrderedDict[tuple[str, str], bool] = OrderedDict()
        self._cache_lock = threading.Lock()

    def verify(self, gold: str, text: str) -> bool:
        """Whether the last answer in `text` equals `gold`. Only the last MAX_TEXT_CHARS characters are read. Blocking.

        Raises: EnvError if `gold` is empty, or the worker exceeds its deadline, dies or can't start.
        """
        if not gold.strip():
            raise EnvError("there is no expected answer to compare with")
        if not text.strip():
            return False
        key = (gold, text[-MAX_TEXT_CHARS:])
        with self._cache_lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        right = self._judge(*key)
        with self._cache_lock:
            self._cache[key] = right
            while len(self._cache) > _CACHE_SIZE:
                self._cache.popitem(last=False)
        return right

    def close(self) -> None:
        """End all processes, waiting for jobs that run. A later `verify` starts new ones."""
        for _ in range(self._workers):
            worker = self._places.get()
            if worker is not None:
                worker.kill()
            self._places.put(None)

    def _judge(self, gold: str, text: str) -> bool:
        worker = self._places.get()
        try:
            worker = worker or _Worker(self._deadline_s)
            return worker.judge(gold, text, self._deadline_s)
        except BaseException:  # a verdict that is still on its way must not reach the next job
            if worker is not None:
                worker.kill()
            worker = None
            raise
        finally:
            self._places.put(worker)


class _Worker:
    """One child process; used by one thread at a time."""

    def __init__(self, deadline_s: float) -> None:
        command = [sys.executable, "-m", "astraflow.envs.verifier_worker", str(_MEMORY_BYTES), str(deadline_s)]
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        except OSError as exc:
            raise EnvError(f"math verifier can't start: {exc}") from exc
        self._read = b""
        try:
            self._message(_START_S)
        except EnvError:
            self.kill()
            raise

    def judge(self, gold: str, text: str, deadline_s: float) -> bool:
        """Raises EnvError if there is no answer within `deadline_s`."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"gold": gold, "text": text}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as exc:
            raise EnvError(f"math verifier died while idle (exit code {self._process.poll()})") from exc
        return bool(self._message(deadline_s)["right"])

    def kill(self) -> None:
        """End the process and reap it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # unsent bytes of a job that is lost anyway
                    pipe.close()

    def _message(self, deadline_s: float) -> dict[str, bool]:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        ends = clock.monotonic() + deadline_s
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while b"\n" not in self._read:
                left_s = ends - clock.monotonic()
                if left_s <= 0 or not selector.select(left_s):
                    raise EnvError(f"math verifier gave no verdict within {deadline_s:g} s and was killed")
                data = os.read(descriptor, 65536)
                if not data:
                    raise EnvError(f"math verifier died (exit code {self._process.wait()}), memory or CPU limit?")
                self._read += data
        line, _, self._read = self._read.partition(b"\n")
        message: dict[str, bool] = json.loads(line)
        return message
