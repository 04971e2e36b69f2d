"""Notice that this machine is about to be taken away: a file that appears, a command that begins to succeed, or a cloud
that says so.

It drains nothing; whoever waits for `noticed` does. A signal is a notice too, but that is the node's (`stopper.py`).
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from astraflow.node.clouds import CLOUDS

_FILE_EVERY_S = 1.0  # one stat a second; there is no portable event for a file that doesn't exist yet
_COMMAND_DEADLINE_S = 10.0
NOT_FOUND = 127  # what a shell returns for a command that isn't there
_TOLD_AFTER = 5  # questions without an answer, in a row


@dataclass(frozen=True, kw_only=True)
class Notice:
    """This machine goes. `left_s`: in how many seconds; None = nobody said."""

    text: str
    left_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Preemption:
    """Where notices come from; empty = nowhere.

    Attributes:
        file: notice = it exists.
        command: run by the shell; notice = exit code 0, e.g. a curl of the cloud's metadata address.
        command_every_s: from the end of one run of the command to the next.
        cloud: a key of `CLOUDS`, whose metadata service is asked.
        address: of that service; "" = where the cloud has it.
    """

    file: str = ""
    command: str = ""
    command_every_s: float = 5.0
    cloud: str = ""
    address: str = ""

    @property
    def lead_s(self) -> float:
        """The notice that the cloud promises; 0 = nobody promises any."""
        return CLOUDS[self.cloud].lead_s if self.cloud else 0.0

    async def noticed(self, *, report: Callable[[str], None]) -> Notice:
        """The notice, once there is one; never returns if there is nothing to look at.

        Args: `report` is called with a sentence if the command can't be found, or the cloud doesn't answer.
        """
        found: asyncio.Queue[Notice] = asyncio.Queue(3)
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._watch_file(found)),
                group.create_task(self._watch_command(found, report)),
                group.create_task(self._watch_cloud(found, report)),
            ]
            notice = await found.get()
            for task in tasks:
                task.cancel()
        return notice

    async def _watch_file(self, found: asyncio.Queue[Notice]) -> None:
        while self.file:
            if await asyncio.to_thread(Path(self.file).exists):
                await found.put(Notice(text=f"file {self.file} exists"))
                return
            await asyncio.sleep(_FILE_EVERY_S)

    async def _watch_command(self, found: asyncio.Queue[Notice], report: Callable[[str], None]) -> None:
        told = False
        while self.command:
            code = await run_command(self.command)
            if code == 0:
                await found.put(Notice(text=f"`{self.command}` succeeded"))
                return
            if code == NOT_FOUND and not told:
                told = True
                report(f"the preemption command `{self.command}` can't be found; this node won't notice a preemption")
            await asyncio.sleep(self.command_every_s)

    async def _watch_cloud(self, found: asyncio.Queue[Notice], report: Callable[[str], None]) -> None:
        failures = 0
        while self.cloud:
            cloud = CLOUDS[self.cloud]
            address = self.address or cloud.address
            try:
                left_s = await asyncio.to_thread(cloud.left_s, cloud, address)
            except (OSError, ValueError, LookupError, TypeError) as exc:
                failures += 1
                if failures == _TOLD_AFTER:
                    report(
                        f"the metadata service of {self.cloud} at {address} doesn't say whether this machine goes "
                        f"({exc}); is this a machine of {self.cloud}? Until it does a preemption isn't noticed"
                    )
            else:
                failures = 0
                if left_s is not None:
                    await found.put(Notice(text=f"{self.cloud} takes it in {left_s:.0f} s", left_s=left_s))
                    return
            await asyncio.sleep(cloud.every_s)


async def run_command(command: str, *, deadline_s: float = _COMMAND_DEADLINE_S) -> int:
    """The shell's exit code; negative for a signal, as when it took longer than the deadline and was killed."""
    process = await asyncio.create_subprocess_shell(
        command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,  # so that what the shell started can be killed with it
    )
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                return await process.wait()
        return -signal.SIGKILL
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
