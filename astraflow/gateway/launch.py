"""A command that is started for each episode, as an agent that knows nothing but OpenAI's or Anthropic's address.

It gets the address and the session's key in its environment and the task as JSON on its standard input; what it prints
is its answer, unless it posts a reward. It judges nothing.
Invariant: when the episode ends, its whole process group has ended. If the rollout process itself is killed, the
command ends with it; what the command started has lost its session then.
"""

import asyncio
import os
import shlex
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from tempfile import TemporaryFile

import msgspec

from astraflow.concurrency import Background, first_of
from astraflow.errors import EnvError
from astraflow.gateway.session import Session
from astraflow.lifeline import dies_with_parent

_TAIL = 4000  # bytes of stderr in an error
_MAX_ANSWER = 1 << 20  # bytes of stdout
_READ = 1 << 16
_SIGNALS = {each.value: each.name for each in signal.Signals}  # real-time ones have no names
_LAST_WORDS_S = 2.0  # to read what the pipes still hold, if something outside its group keeps them open


class Command:
    """A command line, split as a shell would. `url`: of the gateway, known when it listens."""

    def __init__(self, line: str) -> None:
        self.arguments = shlex.split(line)
        self.url = ""

    async def play(self, session: Session) -> str:
        """Run it to its end, or until the session is over. Returns: what it printed, without the last line's end.

        Raises: EnvError if it can't be started, or fails while the session is open.
        """
        with TemporaryFile() as task:  # a pipe would have to be fed while it runs
            task.write(msgspec.json.encode(session.told()))
            task.seek(0)
            async with _read_end(_head) as (answer, out), _read_end(_tail) as (said, err):
                process = await self._started(session, task.fileno(), out, err)
                try:
                    await first_of(process.wait(), session.over.wait())
                finally:
                    _kill_group(process)  # what it left behind holds the pipes open
                    await process.wait()
        if session.over.is_set():
            return ""
        status = process.returncode
        if status:
            how = f"was ended by {_SIGNALS.get(-status, -status)}" if status < 0 else f"exited with {status}"
            raise EnvError(f"command {self.arguments[0]} {how}: {said.text.strip() or 'it said nothing'}")
        return answer.text.removesuffix("\n")

    async def _started(self, session: Session, task: int, out: int, err: int) -> asyncio.subprocess.Process:
        """Raises EnvError. Its write ends are closed here, so that reading ends when it does.

        With pipes of asyncio's own, `wait` would wait for whatever inherited them too.
        """
        try:
            return await asyncio.create_subprocess_exec(
                *self.arguments,
                stdin=task,
                stdout=out,
                stderr=err,
                env=self._environment(session),
                start_new_session=True,
                preexec_fn=dies_with_parent(signal.SIGKILL),
            )
        except (OSError, ValueError) as exc:
            raise EnvError(f"command {self.arguments[0]!r} can't be started: {exc}") from exc
        finally:
            os.close(out)
            os.close(err)

    def _environment(self, session: Session) -> dict[str, str]:
        return {
            **os.environ,
            "OPENAI_BASE_URL": f"{self.url}/v1",
            "OPENAI_API_KEY": session.key,
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_API_KEY": session.key,
            "ASTRAFLOW_MODEL": session.models[0],
            "ASTRAFLOW_SESSION_URL": f"{self.url}/s/{session.key}",
        }


def _kill_group(process: asyncio.subprocess.Process) -> None:
    """The group outlives its leader as long as one of it lives, so its number can't be somebody else's meanwhile."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


@dataclass
class _Kept:
    """What was kept of an output."""

    text: str = ""


@asynccontextmanager
async def _read_end(read: Callable[[asyncio.StreamReader], Awaitable[bytes]]) -> AsyncIterator[tuple[_Kept, int]]:
    """A pipe that is read while inside and to its end after: (what is kept, there after the block; its write end)."""
    kept, (reading, writing) = _Kept(), os.pipe()
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader),
        open(reading, "rb", buffering=0),  # noqa: ASYNC230, SIM115 - of a pipe, which the transport closes
    )

    async def keep() -> None:
        kept.text = (await read(reader)).decode(errors="replace")

    try:
        async with Background(grace_s=_LAST_WORDS_S) as background:
            background.start(keep())
            yield kept, writing
    finally:
        transport.close()


async def _head(stream: asyncio.StreamReader) -> bytes:
    kept = bytearray()
    while piece := await stream.read(_READ):
        kept += piece[: _MAX_ANSWER - len(kept)]
    return bytes(kept)


async def _tail(stream: asyncio.StreamReader) -> bytes:
    kept = b""
    while piece := await stream.read(_READ):
        kept = (kept + piece)[-_TAIL:]
    return kept
