"""The whole path, run by `astraflow up` as a user would, and watched from outside.

It measures between two progress messages of the trainer, so that only whole batches count, and looks at what is on the
wire afterwards, so that looking doesn't cost the figures anything.
"""

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from nats.aio.client import Client
from nats.aio.msg import Msg
from processes import children, cpu_s

from astraflow.bus import Bus, BusOptions, NatsBus, topology_of, wiring
from astraflow.messages import Progress
from astraflow.node.runfolder import Owner, RunFolder
from astraflow.runfile import load

RUN = "pipeline"
START_WITHIN_S = 60.0
CENSUS_BATCHES = 20  # how many batches' worth of episodes the wire is watched for, after the measurement
CENSUS_S = 5.0  # but no longer than this

RUN_FILE = """\
[run]
name = "{run}"
seed = {seed}

[policies.solver]
model = "toy"
engine = {{ kind = "toy", slots = {concurrency}, context_length = 16384 }}

[policies.solver.trainer]
learner = "toy"
steps = 1000000
batch_groups = {batch_groups}
max_staleness = {max_staleness}
prefetch = 2
filters = []

[envs.bench]
kind = "pipeline_env:FixedLengthEnv"
args = {{ prompt_tokens = {prompt_tokens}, completion_tokens = {completion_tokens} }}

[sources.bench]
env = "bench"
group_size = {group_size}

[node]
episodes_per_rollout = {concurrency}
"""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One workload. Trajectories in flight: (max_staleness + 1) · batch."""

    name: str
    prompt_tokens: int
    completion_tokens: int
    batch_groups: int
    group_size: int = 8
    max_staleness: int = 4
    concurrency: int = 128  # episodes that play together, and engine slots

    @property
    def batch(self) -> int:
        """Trajectories per optimizer step."""
        return self.batch_groups * self.group_size

    @property
    def in_flight(self) -> int:
        """Tasks that dataflow lets out at most."""
        return (self.max_staleness + 1) * self.batch

    def run_file(self, seed: int) -> str:
        """The run file's text."""
        return RUN_FILE.format(run=RUN, seed=seed, **{k: getattr(self, k) for k in self.__dataclass_fields__})


@dataclass(kw_only=True)
class Figures:
    """What a run did in its measured seconds."""

    seconds: float
    trajectories: int
    cpu_s: dict[str, float]  # per process, CPU seconds in that time
    messages: dict[str, float] = field(default_factory=dict)  # published, per trajectory, by kind
    bytes: dict[str, float] = field(default_factory=dict)  # payload per trajectory, by kind

    @property
    def trajectories_per_s(self) -> float:
        return self.trajectories / self.seconds

    @property
    def cpu_ms(self) -> float:
        """CPU milliseconds of all processes together, per trajectory."""
        return 1000 * sum(self.cpu_s.values()) / self.trajectories


@asynccontextmanager
async def started(folder: Path, file: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """`astraflow up`, drained at the end."""
    benchmarks = str(Path(__file__).parent)
    paths = [path for path in (benchmarks, os.environ.get("PYTHONPATH")) if path]
    with (folder / "up.log").open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "astraflow.cli.main",
            "up",
            str(file),
            cwd=folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
            try:
                async with asyncio.timeout(30):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()


async def run_pipeline(folder: Path, shape: Shape, *, warm_up_s: float, measure_s: float, seed: int) -> Figures:
    """Run the shape for a while. Raises RuntimeError, with the log, if `up` ends by itself or doesn't get going."""
    file = folder / "run.toml"
    file.write_text(shape.run_file(seed))
    config = load(file, environments=False)
    async with started(folder, file) as process:
        try:
            async with asyncio.timeout(START_WITHIN_S + warm_up_s + 3 * measure_s):
                options = await options_of(folder, process, RUN)
                async with NatsBus.connect(options, topology_of(config), producer="bench") as bus:
                    figures = await _measure(bus, process.pid, shape, warm_up_s, measure_s)
                figures.messages, figures.bytes = await census(options, f"af.{RUN}.", CENSUS_BATCHES * shape.batch)
                return figures
        except (TimeoutError, RuntimeError) as exc:
            raise RuntimeError(f"`astraflow up` {exc or 'is too slow'}:\n{(folder / 'up.log').read_text()}") from exc


def read_token(owner: Owner) -> str:
    """The server's token."""
    return Path(owner.token_file).read_text().strip()


async def options_of(folder: Path, process: asyncio.subprocess.Process, run: str) -> BusOptions:
    """How to reach the run's server, as soon as there is one."""
    run_folder = RunFolder(folder / "runs" / run)
    while process.returncode is None:
        owner = run_folder.owner()
        if owner is not None and owner.url:
            return BusOptions(url=owner.url, token=read_token(owner))
        await asyncio.sleep(0.05)
    raise RuntimeError(f"ended with code {process.returncode}")


async def _measure(bus: Bus, up: int, shape: Shape, warm_up_s: float, measure_s: float) -> Figures:
    first: tuple[float, int, dict[str, float]] | None = None
    begun = 0.0
    async with aclosing(bus.kv.watch(wiring.PROGRESS.prefix)) as updates:
        async for update in updates:
            now = time.monotonic()
            if not isinstance(update.message, Progress) or update.message.consumed == 0:
                continue
            begun = begun or now
            consumed = update.message.consumed
            if first is None and now - begun >= warm_up_s:
                first = now, consumed, _cpu(up)
            elif first is not None and now - first[0] >= measure_s:
                used = {name: seconds - first[2].get(name, 0.0) for name, seconds in _cpu(up).items()}
                return Figures(seconds=now - first[0], trajectories=(consumed - first[1]) * shape.batch, cpu_s=used)
    raise RuntimeError("told no progress")


def _cpu(up: int) -> dict[str, float]:
    return {name: cpu_s(pid) for name, pid in ({"up": up} | children(up)).items()}


async def census(options: BusOptions, prefix: str, episodes: int) -> tuple[dict[str, float], dict[str, float]]:
    """Messages and payload bytes that clients publish, per trajectory, by kind: the first token behind `prefix`,
    `ack` and `pull` for what goes to JetStream itself. Answers of the server are not seen.

    It ends after `episodes` episodes, whole batches of them, so that the phases of a batch don't tilt the means.
    """
    done = asyncio.Event()
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()

    async def on_message(msg: Msg) -> None:
        kind = _kind(msg.subject, prefix)
        if kind and not done.is_set():
            counts[kind] += 1
            sizes[kind] += len(msg.data)
        if counts["episode"] >= episodes:
            done.set()

    client = Client()
    await client.connect(servers=[options.url], token=options.token, pending_size=64 << 20)
    try:
        for subject in (f"{prefix}>", "$JS.ACK.>", "$JS.API.CONSUMER.MSG.NEXT.>"):
            await client.subscribe(subject, cb=on_message, pending_bytes_limit=0, pending_msgs_limit=0)
        with suppress(TimeoutError):
            async with asyncio.timeout(CENSUS_S):
                await done.wait()
    finally:
        await client.close()
    if not counts["sample"]:
        raise RuntimeError(f"published no batch within {CENSUS_S:g} s")
    seen = counts["episode"]
    return (
        {kind: count / seen for kind, count in counts.most_common()},
        {kind: sizes[kind] / seen for kind, _ in counts.most_common()},
    )


def _kind(subject: str, prefix: str) -> str:
    if subject.startswith("$JS.ACK."):
        return "ack"
    if subject.startswith("$JS.API."):
        return "pull"
    kind = subject.removeprefix(prefix).split(".", 1)[0]
    return "" if kind == subject else kind
