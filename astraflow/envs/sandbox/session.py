"""A program that lives on between inputs, in one sandbox: a shell with its folder, an interpreter with its names.

It knows no tools and no conversations. What a program prints comes back up to a bound; the rest is thrown away.
Invariant: an input that goes past its time or memory ends the whole session, and every later one says so.
"""

import contextlib
import os
import secrets
import select
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from astraflow import clock
from astraflow.envs.arguments import choice
from astraflow.envs.sandbox.job import Limits, Result, Status
from astraflow.envs.sandbox.sandbox import Sandbox, Started
from astraflow.envs.sandbox.watch import memory_of

_CPU_S = 600.0  # of a session's processes, where the limits name none: its inputs are bounded one by one
_LOOK_S = 0.05
_READ = 1 << 16
# a sandbox ends with the thread that has started it; this one ends with the process
_starter = ThreadPoolExecutor(1, thread_name_prefix="sandbox-sessions")

_BASH = r"""
exec 9<&0 0</dev/null 2>&1
while IFS= read -r -u 9 -d '' mark && IFS= read -r -u 9 -d '' text; do
  eval "$text" 9<&-
  printf '\n%s %d\n' "$mark" "$?"
done
"""

_PYTHON = r"""
import ast, os, sys, traceback
inputs = os.fdopen(os.dup(0), "rb")
null = os.open("/dev/null", os.O_RDONLY); os.dup2(null, 0); os.close(null); os.dup2(1, 2)
names = {"__name__": "__main__"}
def until_zero():
    text = bytearray()
    while (byte := inputs.read(1)) != b"\0":
        if not byte:
            os._exit(0)
        text += byte
    return text.decode("utf-8", "surrogateescape")
while True:
    mark, text, code = until_zero(), until_zero(), 0
    try:
        tree = ast.parse(text, "<input>")
        last = tree.body.pop().value if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<input>", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last), "<input>", "eval"), names)
            if value is not None:
                print(repr(value))
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    except BaseException as exc:
        traceback.print_exception(type(exc), exc, exc.__traceback__.tb_next if exc.__traceback__ else None)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
    os.write(1, f"\n{mark} {code}\n".encode())
"""


class Session:
    """A shell or an interpreter that remembers.

    Args:
        kind: "python" prints the value of an input's last expression, as interpreters do; "bash".
        limits: wall_s and output_kb are of each input, all else of the whole session.

    Raises: EnvError if no sandbox can be made.
    """

    def __init__(self, sandbox: Sandbox, kind: str = "python", *, limits: Limits | None = None) -> None:
        given = limits or sandbox.limits
        self._limits = replace(given, cpu_s=given.cpu_s or _CPU_S)
        argv = {"python": [sandbox.tools.python, "-I", "-u", "-c", _PYTHON], "bash": ["bash", "-c", _BASH]}
        self._ended = ""  # why, in words
        self._turn = threading.Lock()
        self._resources = contextlib.ExitStack()
        words = argv[choice("kind", kind, tuple(argv))]
        self._started, self._inputs, self._outputs = _starter.submit(self._start, sandbox, words).result()

    def run(self, text: str) -> Result:
        """Give it an input and wait for what it prints, errors included. One input at a time.

        A session that has ended answers with status KILLED and the reason as what it printed.
        """
        with self._turn:
            if self._ended:
                return Result(status=Status.KILLED, exit=-1, stdout=self._ended.encode())
            mark = secrets.token_hex(16)
            start = clock.monotonic()
            try:
                self._send(f"{mark}\0{text.replace(chr(0), '')}\0".encode(errors="surrogatepass"))
                status, exit_code, printed = self._read(mark.encode(), start + self._limits.wall_s)
            except BrokenPipeError:
                status, exit_code, printed = Status.KILLED, -1, b""
            if status in (Status.TIMEOUT, Status.MEMORY, Status.KILLED):
                self._end(f"this session has ended: {_WORDS[status]}")
            return Result(status=status, exit=exit_code, stdout=printed, wall_s=clock.monotonic() - start)

    def close(self) -> None:
        """End it with all its processes. Idempotent; an input in progress comes back as KILLED."""
        self._started.end()
        with self._turn:
            self._end("this session is closed")

    def _start(self, sandbox: Sandbox, argv: Sequence[str]) -> tuple[Started, int, int]:
        inner_in, inputs = os.pipe()
        outputs, inner_out = os.pipe()
        try:
            program = sandbox.started(argv, {}, self._limits, (inner_in, inner_out, inner_out))
            started = self._resources.enter_context(program)
        except BaseException:
            os.close(inputs)
            os.close(outputs)
            raise
        finally:
            os.close(inner_in)
            os.close(inner_out)
        os.set_blocking(inputs, False)
        return started, inputs, outputs

    def _send(self, data: bytes) -> None:
        """Write all of it; a program that reads nothing is found out by `_read`'s deadline on its answer."""
        until = clock.monotonic() + self._limits.wall_s
        view = memoryview(data)
        while view and (left := until - clock.monotonic()) > 0:
            if select.select((), (self._inputs,), (), left)[1]:
                with contextlib.suppress(BlockingIOError):
                    view = view[os.write(self._inputs, view) :]

    def _read(self, mark: bytes, until: float) -> tuple[Status, int, bytes]:
        most = self._limits.output_kb << 10
        kept, tail, full = bytearray(), b"", False
        ready = select.poll()
        ready.register(self._outputs, select.POLLIN)
        looked = clock.monotonic()
        while (now := clock.monotonic()) < until:
            if now - looked > _LOOK_S:
                looked = now
                if memory_of(self._started.child.pid) > self._limits.memory_mb << 20:
                    return Status.MEMORY, -1, bytes(kept)
            if not ready.poll(min(_LOOK_S, until - now) * 1000):
                continue
            chunk = os.read(self._outputs, _READ)
            if not chunk:
                return Status.KILLED, -1, bytes(kept)
            kept += chunk[: most + len(mark) * 2 - len(kept)]
            full = full or len(kept) > most
            tail = tail[-len(mark) * 2 :] + chunk
            _, found, after = tail.partition(b"\n" + mark + b" ")
            if found and b"\n" in after:
                printed = bytes(kept).partition(b"\n" + mark)[0][:most]
                return Status.OUTPUT if full else Status.OK, int(after.partition(b"\n")[0]), printed
        return Status.TIMEOUT, -1, bytes(kept[:most])

    def _end(self, why: str) -> None:
        if self._ended:
            return
        self._ended = why
        self._resources.close()
        os.close(self._inputs)
        os.close(self._outputs)


_WORDS = {
    Status.TIMEOUT: "an input took too long",
    Status.MEMORY: "it took too much memory",
    Status.KILLED: "its program is gone",
}
