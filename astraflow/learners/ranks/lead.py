"""A learner whose steps are computed by this process and its followers, which it starts and ends.

This process is rank 0, the only one that anybody else knows. Every call goes to the followers first, then all compute
it together. Not here: the computation (`torch_learner.py`), checkpoints' place, versions.
Invariant: when one rank ends or freezes all of them end, this process too, with `EXIT_TOGETHER` and one line that says
which and how; its node starts it anew, from the last checkpoint, on the ranks that come then.
"""

import contextlib
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import torch

from astraflow import clock
from astraflow.compute import compute_dtype
from astraflow.config import TrainerSection
from astraflow.errors import ConfigError, MessageError, WeightsError
from astraflow.learners.base import StepReport
from astraflow.learners.ranks import group
from astraflow.learners.ranks.control import Command, Hello, Line, Place, receive, send
from astraflow.learners.ranks.follower import TOKEN_VARIABLE
from astraflow.learners.torch_learner import TorchLearner
from astraflow.lifeline import EXIT_TOGETHER, dies_with_parent
from astraflow.messages import Probe, Sample
from astraflow.models.loading import Sharding
from astraflow.ports import free_port
from astraflow.weights.codec.tensors import HostTensor

_MEET_WITHIN_S = (
    300.0  # the computing group, once all have their places; torch's own bound of every collective is it too
)
_BEYOND = (ConfigError, MessageError, WeightsError, OSError)  # found alike by every rank, or told to all of them

_logger = logging.getLogger(__name__)


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank's learner is made of. The lead has chosen the dtype: two machines may find others faster."""

    model_folder: str
    reference_folder: str | None
    section: TrainerSection
    seed: int
    threads: int
    temperature: float


def build_rank(place: Place) -> TorchLearner:
    """Meet the other ranks and load this one's pieces. Raises as TorchLearner; RuntimeError if one stays away."""
    recipe = msgspec.msgpack.decode(place.recipe, type=Recipe)
    group.join(rank=place.rank, size=place.size, port=place.port, timeout_s=_MEET_WITHIN_S)
    ranks = recipe.section.ranks
    return TorchLearner(
        Path(recipe.model_folder),
        recipe.section,
        seed=recipe.seed,
        threads=recipe.threads,
        temperature=recipe.temperature,
        reference_folder=Path(recipe.reference_folder) if recipe.reference_folder else None,
        team=group.Ranks(),
        sharding=Sharding(
            data=place.size // ranks.replicate,
            replicate=ranks.replicate,
            dtype=compute_dtype(recipe.section.dtype),
        ),
    )


def obey(learner: TorchLearner, command: Command) -> None:
    """Do a follower's part. What every rank finds alike the lead tells."""
    with contextlib.suppress(MessageError, WeightsError, OSError):
        match command.op:
            case "step":
                learner.step(msgspec.msgpack.decode(command.payload, type=list[Sample]))
            case "export":
                learner.export()
            case "probe":
                learner.probe()
            case "save":
                learner.save(Path(command.payload.decode()))
            case "restore":
                learner.restore(Path(command.payload.decode()))
            case _:
                raise AssertionError(command.op)


class RankedLearner:
    """A `Learner` of several processes on this machine. Its calls come from one thread, as every learner's.

    Raises: ConfigError as `TorchLearner`, and if fewer than `ranks.min` come within `ranks.settle_s`.
    """

    def __init__(
        self,
        model_folder: Path,
        section: TrainerSection,
        *,
        seed: int,
        threads: int,
        temperature: float,
        reference_folder: Path | None,
    ) -> None:
        self._ranks = section.ranks
        self._ending = threading.Lock()
        self._closing = threading.Event()
        self._lines: list[Line] = []
        self._followers: dict[int, subprocess.Popen[bytes]] = {}  # by rank
        size = section.ranks.size
        each = max(1, threads // size)
        dtype = "bf16" if compute_dtype(section.dtype) == torch.bfloat16 else "fp32"
        recipe = Recipe(
            model_folder=str(model_folder),
            reference_folder=str(reference_folder) if reference_folder else None,
            section=msgspec.structs.replace(section, dtype=dtype),
            seed=seed,
            threads=each,
            temperature=temperature,
        )
        place = self._gather(size, each, msgspec.msgpack.encode(recipe))
        with self._all_or_none():
            self._learner = build_rank(place)
        _logger.info("ranks ready", extra={"ranks": place.size, "followers": [p.pid for p in self._followers.values()]})

    def _gather(self, size: int, threads: int, recipe: bytes) -> Place:
        """Start the followers, wait for those that come, and give everybody a place; this process's is returned."""
        token = secrets.token_hex(16)
        with socket.create_server(("127.0.0.1", 0)) as server:
            started = [_start(server.getsockname()[1], token, threads) for _ in range(1, size)]
            there = self._hellos(server, started, token)
        for process in started:
            if process.pid not in there:
                process.kill()
        size = self._settled(1 + len(there), size)
        place = Place(rank=0, size=size, port=free_port(), silent_s=self._ranks.silent_s, recipe=recipe)
        by_pid = {process.pid: process for process in started}
        for rank, (pid, line) in enumerate(sorted(there.items()), 1):
            if rank >= size:  # a rank too many for whole copies of the model
                by_pid[pid].kill()
                continue
            self._followers[rank] = by_pid[pid]
            send(line, msgspec.structs.replace(place, rank=rank))
            lost = _Lost(self, rank)
            self._lines.append(Line(line, silent_s=self._ranks.silent_s, lost=lost))
        return place

    def _hellos(
        self, server: socket.socket, started: Sequence[subprocess.Popen[bytes]], token: str
    ) -> dict[int, socket.socket]:
        """Lines by process id: of all, or of those that came within settle_s or while any may still come."""
        deadline = clock.monotonic() + self._ranks.settle_s
        there: dict[int, socket.socket] = {}
        server.settimeout(0.2)
        while clock.monotonic() < deadline and any(p.poll() is None and p.pid not in there for p in started):
            with contextlib.suppress(TimeoutError):
                line, _ = server.accept()
                line.settimeout(self._ranks.silent_s)
                with contextlib.suppress(OSError, msgspec.MsgspecError):
                    hello = msgspec.msgpack.decode(receive(line), type=Hello)
                    if secrets.compare_digest(hello.token, token):
                        there[hello.pid] = line
        return there

    def _settled(self, came: int, wanted: int) -> int:
        """How many ranks go on. Raises ConfigError if they are too few."""
        size = came - came % self._ranks.replicate
        if size < max(self._ranks.min, 1):
            raise ConfigError(
                f"{came} of {wanted} ranks came within {self._ranks.settle_s:g} s, and trainer.ranks.min is "
                f"{self._ranks.min}; this log says why the others did not"
            )
        if size < wanted:
            _logger.warning("fewer ranks than asked for", extra={"ranks": size, "asked": wanted})
        return size

    def lost(self, rank: int, why: str) -> None:
        """End all ranks, and this process; called in any thread, when `rank` is gone or silent."""
        lost = self._followers[rank]
        others = [process for process in self._followers.values() if process is not lost or why == "silent"]
        self._end(f"rank {rank} of {1 + len(self._followers)} {_ended(lost, why)}", others)

    def _end(self, text: str, followers: Sequence[subprocess.Popen[bytes]]) -> None:
        """Kill these, say why, and end this process, past whatever could catch it."""
        self._ending.acquire()  # once, and for ever
        for process in followers:
            process.kill()
        sys.stderr.write(f"{text}; all end\n")
        sys.stderr.flush()
        os._exit(EXIT_TOGETHER)

    def _call(self, op: str, payload: bytes = b"") -> None:
        for line in self._lines:
            line.command(op, payload)

    @contextlib.contextmanager
    def _all_or_none(self) -> Iterator[None]:
        """Around what is computed together: what this rank alone can't do ends all."""
        try:
            yield
        except _BEYOND:
            raise
        except BaseException as exc:
            if self._closing.is_set():
                raise
            # Most often another rank is gone, and its line says so in a moment, better than torch does.
            with contextlib.suppress(subprocess.TimeoutExpired):
                for process in self._followers.values():
                    process.wait(0.1)
            _logger.exception("a rank's fault")
            for rank, process in self._followers.items():
                if process.poll() is not None:
                    self.lost(rank, "closed")
            self._end(f"rank 0 of {1 + len(self._followers)}: {exc}", list(self._followers.values()))
            raise

    def step(self, samples: Sequence[Sample]) -> StepReport:
        self._call("step", msgspec.msgpack.encode(list(samples)))
        with self._all_or_none():
            return self._learner.step(samples)

    def export(self) -> Mapping[str, HostTensor]:
        self._call("export")
        with self._all_or_none():
            return self._learner.export()

    def probe(self) -> Probe | None:
        self._call("probe")
        with self._all_or_none():
            return self._learner.probe()

    def model_files(self) -> Mapping[str, bytes]:
        return self._learner.model_files()

    def save(self, folder: Path) -> None:
        self._call("save", str(folder).encode())
        with self._all_or_none():
            self._learner.save(folder)

    def restore(self, folder: Path) -> None:
        self._call("restore", str(folder).encode())
        with self._all_or_none():
            self._learner.restore(folder)

    def export_model(self, folder: Path) -> None:
        self._call("export")
        with self._all_or_none():
            self._learner.export_model(folder)

    def close(self) -> None:
        """Let the followers end; from any thread, also while they compute: what they do then is lost."""
        self._closing.set()
        for line in self._lines:
            line.stop()
        for process in self._followers.values():
            try:
                process.wait(self._ranks.silent_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for line in self._lines:
            line.close()
        group.part()


class _Lost:
    """What ends a follower's line: a call that knows its rank."""

    def __init__(self, learner: RankedLearner, rank: int) -> None:
        self._learner, self._rank = learner, rank

    def __call__(self, why: str) -> None:
        self._learner.lost(self._rank, why)


def _start(port: int, token: str, threads: int) -> subprocess.Popen[bytes]:
    """A follower, which ends when this process does; what it says goes where this process's errors go."""
    count = str(threads)
    return subprocess.Popen(
        [sys.executable, "-m", "astraflow.learners.ranks.follower", str(port)],
        env={**os.environ, TOKEN_VARIABLE: token, "OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count},
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        preexec_fn=dies_with_parent(signal.SIGKILL),
    )


def _ended(process: subprocess.Popen[bytes], why: str) -> str:
    if why == "silent":
        return f"(process {process.pid}) has been silent; it was killed"
    with contextlib.suppress(subprocess.TimeoutExpired):
        code = process.wait(0.2)
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"(process {process.pid}) ended with {name}"
    return f"(process {process.pid}) closed its line"
