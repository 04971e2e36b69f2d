"""One toy run and what is done to it: kills, freezes, lost messages, and what must be true afterwards.

`tests/chaos.py` plays one after the other. Invariant: whatever was done, at the end it is as if nothing had happened.
"""

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from astraflow.bus import EmbeddedServer
from tests.cli.toyrun import Command, sets, started
from tests.e2e.finite import FiniteRun
from tests.faultproxy import Kind, Rates, every, proxied

RECOVERY_S = 90.0  # from the end of a fault to the next step, on a machine that may have other work
END_WITHIN_S = 180.0  # from the last fault to the end of the run
FAULTS_MOST = 8  # in a round
ACTORS = ("rollout", "policy", "dataflow", "trainer", "recorder")
WEIGHTS = {"kill": 5, "stop": 3, "server": 2, "messages": 2, "cut": 1, "node": 2, "up": 1}
WILD = every(Rates(drop=0.2, duplicate=0.2, delay=0.2)) | {
    Kind.LOG: Rates(drop=0.1, duplicate=0.2, delay=0.1),
    Kind.PULL: Rates(drop=0.02, delay=0.2),
    Kind.API: Rates(drop=0.01, duplicate=0.2, delay=0.2),
}


class BrokenError(Exception):
    """An invariant doesn't hold."""


class Round:
    """One run and what is done to it. The order of faults follows from the seed, their moments from the machine too."""

    def __init__(self, seed: int, folder: Path, only: Sequence[str] = (), *, groups: int = 40) -> None:
        """`only`: the kinds of faults to draw from; none = all."""
        self._random = random.Random(seed)
        self._only = only
        self.run = FiniteRun(
            name=f"chaos-{seed}",
            groups=groups,
            filtered=self._random.random() < 0.3,
            step_s=0.4,
            replicas=self._random.choice([1, 2]),
            rollouts=self._random.choice([1, 2]),
            standbys=self._random.choice([0, 1]),
        )
        self._folder = folder
        self._server = EmbeddedServer(folder / "nats")
        self._up: Command | None = None
        self._node: Command | None = None
        self._steps = 0
        self._began = time.monotonic()
        self.faults: list[str] = []

    def say(self, text: str) -> None:
        """One line."""
        sys.stdout.write(f"  {time.monotonic() - self._began:5.1f} s  step {self._steps:3}  {text}\n")
        sys.stdout.flush()

    async def play(self, plan: Sequence[str] = ()) -> None:
        """With these faults in order, else with some that are drawn. Raises BrokenError."""
        plan = plan or [self._draw() for _ in range(self._random.randint(3, FAULTS_MOST))]
        (self._folder / "run.toml").write_text(self.run.text())
        await self._server.start()
        try:
            async with proxied(self._server.port, seed=self._random.randrange(1 << 30)) as self._proxy:
                await self._disturbed(plan)
        finally:
            await self._server.stop()
        self._judge()

    async def _disturbed(self, plan: Sequence[str]) -> None:
        async with contextlib.AsyncExitStack() as self._stack:
            await self._start_up()
            await self._step_within(RECOVERY_S, "the start")
            for kind in plan:
                if not await self._pause(self._random.uniform(0.2, 4)):
                    break
                name = await self._fault(kind)
                self.faults.append(name)
                if not await self._step_within(RECOVERY_S, name):
                    break
            await self._ended()

    # --- faults ---

    def _draw(self) -> str:
        names = [name for name in WEIGHTS if not self._only or name in self._only]
        return self._random.choices(names, [WEIGHTS[name] for name in names])[0]

    async def _fault(self, kind: str) -> str:
        """Do it; what it was."""
        kinds: dict[str, Callable[[], Coroutine[Any, Any, str]]] = {
            "kill": self._kill_actor,
            "stop": self._stop_actor,
            "server": self._kill_server,
            "messages": self._wild_messages,
            "cut": self._cut,
            "node": self._swap_node,
            "up": self._kill_up,
        }
        return f"{kind} {await kinds[kind]()}".strip()

    def _pick(self) -> tuple[str, int] | None:
        """An actor that runs now."""
        role = self._random.choice(ACTORS)
        running = {name: pid for name, pid in self._actors().items() if name.startswith(role)}
        if not running:
            return None
        name = self._random.choice(sorted(running))
        return name, running[name]

    async def _kill_actor(self) -> str:
        if (found := self._pick()) is None:
            return "nobody"
        name, pid = found
        self.say(f"kill -9 {name}")
        _signal(pid, signal.SIGKILL)
        return name

    async def _stop_actor(self) -> str:
        if (found := self._pick()) is None:
            return "nobody"
        name, pid = found
        seconds = self._random.choice([0.5, 2.5, 6.0])
        self.say(f"SIGSTOP {name} for {seconds:g} s")
        _signal(pid, signal.SIGSTOP)
        await asyncio.sleep(seconds)
        _signal(pid, signal.SIGCONT)
        return name

    async def _kill_server(self) -> str:
        down_s = self._random.choice([0.0, 0.5, 3.0])
        self.say(f"kill -9 nats-server, down for {down_s:g} s")
        os.kill(self._server.pid, signal.SIGKILL)
        await self._server.wait()
        await asyncio.sleep(down_s)
        self._server = EmbeddedServer(self._server.folder, port=self._server.port)
        await self._server.start()
        return ""

    async def _wild_messages(self) -> str:
        seconds = self._random.uniform(3, 10)
        self.say(f"messages get lost, doubled and overtaken for {seconds:.1f} s")
        self._proxy.rates = WILD
        await asyncio.sleep(seconds)
        self._proxy.rates = {}
        return ""

    async def _cut(self) -> str:
        self.say("every connection is cut")
        self._proxy.cut()
        return ""

    async def _swap_node(self) -> str:
        if self._node is not None and self._node.process.returncode is None:
            self.say("kill -9 the joined node")
            self._node.process.kill()
            await self._node.process.wait()
            self._node = None
            return "killed"
        self.say("a node joins")
        arguments = ["node", "--join", self._proxy.url, "--run", self.run.name, "--role", "rollout"]
        arguments += ["--role", "policy:solver", "--token-file", str(self._server.token_file)]
        self._node = await self._stack.enter_async_context(started(self._folder, *arguments))
        return "joined"

    async def _kill_up(self) -> str:
        self.say("kill -9 astraflow up")
        assert self._up is not None
        self._up.process.kill()
        await self._up.process.wait()
        await self._start_up()
        return ""

    # --- the run ---

    async def _start_up(self) -> None:
        server = [f"bus.url={self._proxy.url}", f"bus.token_file={self._server.token_file}"]
        self._up = await self._stack.enter_async_context(started(self._folder, "up", "run.toml", *sets(*server)))

    async def _line(self) -> str:
        """The next line of `up`, noted; "" at its end."""
        assert self._up is not None
        assert self._up.process.stdout is not None
        line = (await self._up.process.stdout.readline()).decode(errors="replace")
        self._up.output += line
        if "solver step " in line:
            self._steps += 1
        return line

    async def _pause(self, seconds: float) -> bool:
        """Let it go on for a while; False if `up` has ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while await self._line():
                    pass
                return False
        return True

    async def _step_within(self, seconds: float, since: str) -> bool:
        """Wait for the next step; False if `up` has ended or the trainer has finished. Raises BrokenError."""
        try:
            async with asyncio.timeout(seconds):
                while line := await self._line():
                    if "solver step " in line:
                        return True
                    if "trainer-local-0 is gone" in line and self._steps * 2 >= self.run.groups - 2:
                        return False
                return False
        except TimeoutError:
            raise BrokenError(f"no step within {seconds:g} s of {since}\n{self._tail()}") from None

    async def _ended(self) -> None:
        assert self._up is not None
        try:
            code = await self._up.end(END_WITHIN_S)
        except TimeoutError:
            raise BrokenError(f"the run doesn't end within {END_WITHIN_S:g} s\n{self._tail()}") from None
        if code != 0:
            raise BrokenError(f"exit code {code}\n{self._tail()}")
        if self._node is not None and self._node.process.returncode is None:
            self._node.process.terminate()  # else it would wait for the run to be submitted again
            try:
                code = await self._node.end(60)
            except TimeoutError:
                raise BrokenError(f"the joined node doesn't end within 60 s\n{_tail(self._node)}") from None
            if code != 0:
                raise BrokenError(f"the joined node's exit code is {code}\n{_tail(self._node)}")
        if actors := await self._actors_left():
            raise BrokenError(f"processes are left: {actors}")

    async def _actors_left(self) -> dict[str, int]:
        """Actors that are still there after a moment."""
        for _ in range(20):
            if not self._actors():
                return {}
            await asyncio.sleep(0.1)
        return self._actors()

    def _judge(self) -> None:
        run_folder = self._folder / "runs" / self.run.name
        broken = self.run.broken(run_folder)
        leaked = [str(path) for path in (self._folder / "tmp").iterdir()]
        leaked += [str(path) for path in run_folder.rglob(".tmp*")]
        if leaked:
            broken.append(f"temporary files are left: {leaked}")
        if broken:
            raise BrokenError("\n".join(broken))

    def _actors(self) -> dict[str, int]:
        """Pids of the run's actor processes, by name."""
        found = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                words = (entry / "cmdline").read_bytes().decode().split("\0") if entry.name.isdigit() else []
                if "astraflow.actors" in words and self.run.name in words:
                    found[words[words.index("--name") + 1]] = int(entry.name)
        return found

    def _tail(self) -> str:
        assert self._up is not None
        return _tail(self._up)


def _tail(command: Command) -> str:
    return "".join(f"    | {line}\n" for line in command.output.splitlines()[-15:])


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
        os.kill(pid, number)
