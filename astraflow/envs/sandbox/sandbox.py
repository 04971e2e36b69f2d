"""Runs one program at a time per slot, in a sandbox that is made for it and gone with it.

It doesn't know how isolation is done, nor what programs are for. Output goes into memory files instead of pipes, so
that a flood ends at its bound and a program that nobody reads never blocks.
Invariant: when `run` returns, no process of the program is left.
"""

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from astraflow import clock
from astraflow.envs.sandbox import isolation, probe, seccomp
from astraflow.envs.sandbox.job import Limits, Result, Status
from astraflow.envs.sandbox.watch import wait
from astraflow.errors import ConfigError, EnvError

_SIGNALLED = 128  # exit codes from here on name a signal
_TOLD = 300  # characters of bwrap's last words


class Sandbox:
    """Runs programs that nobody trusts.

    Args:
        limits: of each program that isn't given its own.
        slots: programs at a time; more wait for their turn. 0 = as many as this machine has cores.
        python: the interpreter; "" = this machine's. Sandboxed programs see it and nothing else of ours.
        unsafe: no isolation, limits only. For machines without user namespaces, where all else is trusted.

    Raises:
        ConfigError: bubblewrap is missing, this machine allows no sandboxes, or one doesn't hold what it promises.
    """

    def __init__(self, *, limits: Limits | None = None, slots: int = 0, python: str = "", unsafe: bool = False) -> None:
        if slots < 0:
            raise ConfigError(f"slots of a sandbox is {slots}, expected 0 (as many as cores) or more")
        self.limits = limits or Limits()
        self.unsafe = unsafe
        self.tools = isolation.find_tools(python=python, unsafe=unsafe)
        self._slots = threading.BoundedSemaphore(slots or os.cpu_count() or 1)
        if not unsafe:
            probe.make_sure(self)

    def run(
        self,
        program: str | Sequence[str],
        *,
        files: Mapping[str, bytes] | None = None,
        stdin: bytes = b"",
        limits: Limits | None = None,
    ) -> Result:
        """Run it to its end.

        Args:
            program: Python source, or the words of a command.
            files: by name in its working directory /tmp.

        Raises: EnvError if no sandbox can be made; that is never the program's fault.
        """
        with self.slot():
            return self.run_now(program, files=files, stdin=stdin, limits=limits)

    @contextlib.contextmanager
    def slot(self) -> Iterator[None]:
        """Wait for one, and hold it in the block."""
        with self._slots:
            yield

    def run_now(
        self,
        program: str | Sequence[str],
        *,
        files: Mapping[str, bytes] | None = None,
        stdin: bytes | int = b"",
        limits: Limits | None = None,
        beside: "Started | None" = None,
    ) -> Result:
        """As `run`, without waiting for a slot: for whoever holds one.

        Args:
            stdin: what it reads, or a descriptor that is its standard input.
            beside: a program that works for it: its memory counts too.
        """
        limits = limits or self.limits
        given = dict(files or {})
        if isinstance(program, str):
            given["main.py"] = program.encode(errors="surrogatepass")
        argv = [self.tools.python, "-s", "-B", "main.py"] if isinstance(program, str) else list(program)
        with contextlib.ExitStack() as stack:
            told = stdin if isinstance(stdin, int) else stack.enter_context(memory_file("in", stdin))
            out, err = stack.enter_context(memory_file("out")), stack.enter_context(memory_file("err"))
            start = clock.monotonic()
            process = stack.enter_context(self.started(argv, given, limits, (told, out, err)))
            status = wait(process.child.pid, limits, beside=beside.child.pid if beside else 0)
            exit_code = process.end()
            wall_s = clock.monotonic() - start
            most = limits.output_kb << 10
            stdout, stderr = os.pread(out, most, 0), os.pread(err, most, 0)
        if status is Status.OK:
            if exit_code is None:
                raise EnvError(f"no sandbox could be made: {_last_words(stderr)}")
            status = _status_of(exit_code, full=most in (len(stdout), len(stderr)))
        code = -1 if exit_code is None or status in (Status.TIMEOUT, Status.MEMORY) else exit_code
        return Result(status=status, exit=code, stdout=stdout, stderr=stderr, wall_s=wall_s)

    @contextlib.contextmanager
    def started(
        self,
        argv: Sequence[str],
        files: Mapping[str, bytes],
        limits: Limits,
        streams: tuple[int, int, int],
    ) -> Iterator["Started"]:
        """A program that runs while the block does. Its sandbox ends with the thread that started it."""
        with contextlib.ExitStack() as stack:
            told = stack.enter_context(memory_file("status"))
            folder = ""
            if self.unsafe:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="astraflow-unsafe-"))
                _write(Path(folder), files)
                fds: list[int] = []
                words = isolation.unsafe_command(self.tools, limits, list(argv))
            else:
                given = {f"/tmp/{name}": stack.enter_context(memory_file("file", data)) for name, data in files.items()}
                bpf = stack.enter_context(memory_file("filter", code)) if (code := seccomp.program()) else -1
                fds = [*given.values(), told, *([bpf] if bpf >= 0 else [])]
                words = isolation.command(self.tools, limits, list(argv), files=given, seccomp=bpf, status=told)
            user = isolation.next_user()
            if user is not None and folder:
                os.chown(folder, user, user)
            child = subprocess.Popen(
                words,
                stdin=streams[0],
                stdout=streams[1],
                stderr=streams[2],
                pass_fds=fds,
                start_new_session=True,
                cwd=folder or "/",
                env=isolation.ENVIRONMENT | ({"HOME": folder} if folder else {}),
                user=user,
                group=user,
                extra_groups=None if user is None else [],
            )
            started = Started(child, told, unsafe=self.unsafe)
            try:
                yield started
            finally:
                started.end()


class Started:
    """A program in its sandbox."""

    def __init__(self, child: "subprocess.Popen[bytes]", told: int, *, unsafe: bool) -> None:
        self.child = child
        self._told = told
        self._unsafe = unsafe
        self._ending = threading.Lock()
        self._ended = False
        self._exit: int | None = None

    def end(self) -> int | None:
        """Kill what is left of it; its exit code, None if it was never begun or didn't end by itself. Idempotent."""
        with self._ending:
            if not self._ended:
                with contextlib.suppress(ProcessLookupError):  # it isn't reaped yet, so the number is still its own
                    os.killpg(self.child.pid, signal.SIGKILL)
                code = self.child.wait()
                own = _SIGNALLED - code if code < 0 else code
                self._exit = own if self._unsafe else _told_exit(os.pread(self._told, 4096, 0))
                self._ended = True
            return self._exit


def _told_exit(lines: bytes) -> int | None:
    """The exit code in what bwrap tells; None if there is none."""
    marker = b'"exit-code":'
    if marker not in lines:
        return None
    return int(lines.rpartition(marker)[2].strip().split(b"}")[0].split(b",")[0])


def _status_of(exit_code: int, *, full: bool) -> Status:
    if full:
        return Status.OUTPUT
    if exit_code == _SIGNALLED + signal.SIGXCPU:
        return Status.TIMEOUT
    return Status.KILLED if exit_code > _SIGNALLED else Status.OK


@contextlib.contextmanager
def memory_file(name: str, data: bytes = b"") -> Iterator[int]:
    """The descriptor of a file in memory that holds `data`."""
    fd = os.memfd_create(f"astraflow-{name}")
    try:
        os.fchmod(fd, 0o666)
        with open(fd, "wb", closefd=False) as stream:
            stream.write(data)
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        (folder / name).write_bytes(data)


def _last_words(stderr: bytes) -> str:
    words = stderr.decode(errors="replace").strip()
    return words[-_TOLD:] or "bwrap ended without a word"
