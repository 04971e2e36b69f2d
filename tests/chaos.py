"""`make chaos`: toy runs under random faults, until the time is up or an invariant breaks.

    python tests/chaos.py --minutes 10 --seed 1 [--only server --only stop] [--keep]

Every round is a run of its own, of real processes over a finite list of tasks. While it trains, at random moments:

    kill      kill −9 of an actor: rollout, policy, dataflow, trainer, recorder
    stop      SIGSTOP of an actor, for less or more than its lease and its record live, then SIGCONT
    server    kill −9 of nats-server; it is started again on the same port
    messages  some seconds in which messages get lost, doubled and overtaken (faultproxy.py)
    cut       every connection ends at once
    node      another machine's node joins; the one that is there is killed
    up        kill −9 of `astraflow up` with all its processes, and `up` again

Each fault is a line. At the end the run must be as if nothing had happened (`FiniteRun.broken`): exit code 0, no
process left and no temporary file; and after every fault there must be a next step within RECOVERY_S. A round that
breaks one of these says which, with the seed that repeats it, and the exit code is 1.
"""

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from astraflow.bus import EmbeddedServer
from tests.cli.toyrun import Command, sets, started
from tests.e2e.finite import FiniteRun
from tests.faultproxy import FaultProxy, Kind, Rates, every, proxied

RECOVERY_S = 90.0  # from the end of a fault to the next step, on a machine that may have other work
END_WITHIN_S = 180.0  # from the last fault to the end of the run
FAULTS_MOST = 8  # in a round
ACTORS = ("rollout", "policy", "dataflow", "trainer", "recorder")
WILD = every(Rates(drop=0.2, duplicate=0.2, delay=0.2)) | {
    Kind.LOG: Rates(drop=0.1, duplicate=0.2, delay=0.1),
    Kind.PULL: Rates(drop=0.02, delay=0.2),
    Kind.API: Rates(drop=0.01, duplicate=0.2, delay=0.2),
}


class BrokenError(Exception):
    """An invariant doesn't hold."""


class Round:
    """One run and what is done to it. The order of faults follows from the seed, their moments from the machine too."""

    def __init__(self, seed: int, folder: Path, only: list[str]) -> None:
        self._random = random.Random(seed)
        self._only = only
        self.run = FiniteRun(
            name=f"chaos-{seed}",
            groups=40,
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

    async def play(self) -> None:
        """Raises BrokenError."""
        (self._folder / "run.toml").write_text(self.run.text())
        await self._server.start()
        try:
            async with proxied(self._server.port, seed=self._random.randrange(1 << 30)) as self._proxy:
                await self._disturbed(self._proxy)
        finally:
            await self._server.stop()
        self._judge()

    async def _disturbed(self, proxy: FaultProxy) -> None:
        faults = self._random.randint(3, FAULTS_MOST)
        async with contextlib.AsyncExitStack() as self._stack:
            await self._start_up()
            await self._step_within(RECOVERY_S, "the start")
            for _ in range(faults):
                if not await self._pause(self._random.uniform(0.2, 4)):
                    break
                name = await self._fault()
                self.faults.append(name)
                if not await self._step_within(RECOVERY_S, name):
                    break
            await self._ended()

    # --- faults ---

    async def _fault(self) -> str:
        kinds: dict[str, Callable[[], Coroutine[Any, Any, str]]] = {
            "kill": self._kill_actor,
            "stop": self._stop_actor,
            "server": self._kill_server,
            "messages": self._wild_messages,
            "cut": self._cut,
            "node": self._swap_node,
            "up": self._kill_up,
        }
        weights = {"kill": 5, "stop": 3, "server": 2, "messages": 2, "cut": 1, "node": 2, "up": 1}
        names = [name for name in kinds if not self._only or name in self._only]
        (name,) = self._random.choices(names, [weights[name] for name in names])
        what = await kinds[name]()
        return f"{name} {what}".strip()

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


async def chaos(*, minutes: float, seed: int, only: list[str], keep: bool) -> int:
    """Rounds until the time is up; the exit code."""
    until, rounds, faults = time.monotonic() + 60 * minutes, 0, 0
    root = Path(tempfile.gettempdir())
    while rounds == 0 or time.monotonic() < until:
        folder = Path(tempfile.mkdtemp(prefix="astraflow-chaos-", dir=root))
        (folder / "tmp").mkdir()
        os.environ["TMPDIR"] = str(folder / "tmp")  # of the processes of the run
        each = Round(seed, folder, only)
        sys.stdout.write(f"round with seed {seed}: {each.run}\n")
        try:
            await each.play()
        except BrokenError as exc:
            again = f"python tests/chaos.py --minutes 0 --seed {seed}" + "".join(f" --only {o}" for o in only)
            each.say(f"BROKEN after {', '.join(each.faults) or 'no fault'}:\n{exc}\n{folder} is kept; `{again}`")
            return 1
        each.say(f"as if nothing had happened, after {len(each.faults)} faults")
        if not keep:
            shutil.rmtree(folder)
        rounds, faults, seed = rounds + 1, faults + len(each.faults), seed + 1
    sys.stdout.write(f"{rounds} rounds, {faults} faults, no invariant broken\n")
    return 0


def main() -> int:
    """Parse, run; the return value is the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="no new round after this; 0 = one round")
    parser.add_argument("--seed", type=int, default=1, help="of the first round; the next rounds count up")
    parser.add_argument("--only", action="append", default=[], metavar="FAULT", help="only faults of this kind")
    parser.add_argument("--keep", action="store_true", help="keep the folders of good rounds too")
    args = parser.parse_args()
    return asyncio.run(chaos(minutes=args.minutes, seed=args.seed, only=args.only, keep=args.keep))


if __name__ == "__main__":
    sys.exit(main())
