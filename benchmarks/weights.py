"""From an optimizer step to tokens of the new version: sizes, speeds, latency, pause, next to what the machine can do.

    python benchmarks/weights.py --rates 1e-6 5e-6 --steps 4

Real policy-gradient steps of SmolLM2-135M (as in delta_codec.py) are published by the trainer's `WeightPublisher` to a
nats-server of its own, followed by a `WeightFollower` and swapped into the in-process engine, which decodes `--running`
requests meanwhile; trainer and replica share this process. Wall milliseconds, the median over the steps; where it says
CPU, those of one thread, the best of five, which other load on the machine lengthens less. A full goes by each of
`--transports` (as in full_transports.py). The bounds are of the same run: a copy of the model in memory, a copy
of it over a loopback TCP connection, and a copy of as many elements as changed. `--model tiny` is the smallest form.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from delta_codec import Clock, Model, versions
from full_transports import measure as measure_full
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM

from astraflow.actors.base.context import ActorContext
from astraflow.bus import EmbeddedServer, NatsBus, topology_of
from astraflow.compute import compute_dtype
from astraflow.config import (
    EngineSection,
    EnvSection,
    PolicySection,
    RunConfig,
    RunSection,
    SourceSection,
    TrainerSection,
    to_json,
)
from astraflow.engines.architecture import decoder_spec
from astraflow.engines.base import EngineRequest, PolicyEngine
from astraflow.engines.cpu import CpuEngine
from astraflow.engines.decoder_weights import DecoderWeights
from astraflow.errors import EngineError
from astraflow.learners.master import MasterWeights
from astraflow.learners.team import Alone
from astraflow.messages import RunRecord, Sampling
from astraflow.models.derived import derived_config
from astraflow.models.export import export_tensors
from astraflow.models.facts import read_facts
from astraflow.models.folder import read_model
from astraflow.models.layout import checkpoint_layout
from astraflow.models.smollm2 import prepare_smollm2
from astraflow.models.tiny import prepare_tiny
from astraflow.weights.codec.changes import Behind
from astraflow.weights.codec.delta import decode, encode
from astraflow.weights.codec.differences import as_integers
from astraflow.weights.codec.host_copy import HostCopy, apply
from astraflow.weights.transfer.follower import WeightFollower, first_head
from astraflow.weights.transfer.publisher import WeightPublisher

PROMPT_TOKENS, NEW_TOKENS = 16, 400
CHUNK_BYTES = 1 << 20
REPEATS = 5


def config() -> RunConfig:
    solver = PolicySection(model="smollm2-135m-instruct", trainer=TrainerSection(steps=1))
    return RunConfig(
        run=RunSection(name="bench"),
        policies={"solver": solver},
        envs={"e": EnvSection(kind="toy")},
        sources={"s": SourceSection(env="e")},
    )


@asynccontextmanager
async def contexts() -> AsyncIterator[tuple[ActorContext, ActorContext]]:
    """A trainer's and a replica's, on a server of their own."""
    settings = config()
    with tempfile.TemporaryDirectory(prefix="astraflow-weights-") as folder:
        server = EmbeddedServer(Path(folder) / "nats")
        await server.start()
        try:
            topology = topology_of(settings)
            async with (
                NatsBus.connect(server.options, topology, producer="trainer") as one,
                NatsBus.connect(server.options, topology, producer="replica") as two,
            ):
                await one.ensure()
                record = RunRecord(name="bench", incarnation="b", config_json=to_json(settings), created_at=0.0)
                yield tuple(  # type: ignore[misc]
                    ActorContext(
                        bus=bus,
                        config=settings,
                        record=record,
                        folder=Path(folder),
                        name=role,
                        role=role,
                        policy="solver",
                    )
                    for bus, role in ((one, "trainer"), (two, "replica"))
                )
        finally:
            await server.stop()


@asynccontextmanager
async def decoding(engine: PolicyEngine, count: int, *, vocabulary: int) -> AsyncIterator[None]:
    """Keep `count` requests running."""
    new_tokens = min(NEW_TOKENS, engine.context_length - PROMPT_TOKENS)

    async def run(number: int) -> None:
        for attempt in range(10**6):
            prompt = np.random.default_rng(number).integers(0, vocabulary, PROMPT_TOKENS).astype(np.int32)
            sampling = Sampling(max_new_tokens=new_tokens, ignore_eos=True)
            request = EngineRequest(id=f"{number}-{attempt}", prompt_tokens=prompt, sampling=sampling, seed=number)
            try:
                async for _ in engine.generate(request):
                    pass
            except EngineError:
                return

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run(number)) for number in range(count)]
        yield
        for task in tasks:
            task.cancel()


async def loopback_s(data: bytes) -> float:
    """Seconds for these bytes over a TCP connection to this process."""
    done = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(CHUNK_BYTES):
            pass
        writer.close()
        done.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=CHUNK_BYTES)
    async with server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        started = time.perf_counter()
        for start in range(0, len(data), CHUNK_BYTES):
            writer.write(data[start : start + CHUNK_BYTES])
            await writer.drain()
        writer.close()
        await done.wait()
        return time.perf_counter() - started


def tiny_versions(folder: Path, learning_rate: float, steps: int) -> Iterator[Model]:
    """Like `delta_codec.versions`, of a model whose tokenizer knows no chats: it learns random tokens."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    section = TrainerSection(steps=steps, learning_rate=learning_rate)
    master = MasterWeights(model, section, dtype=torch.bfloat16, dither_seed=0, team=Alone())
    torch.manual_seed(0)
    layout = checkpoint_layout(model)
    yield export_tensors(model.state_dict(), layout)
    for _ in range(steps):
        tokens = torch.randint(model.config.vocab_size, (4, 16))
        model(input_ids=tokens, labels=tokens).loss.backward()
        master.apply_gradients(master.gradient_norm(), learning_rate=learning_rate)
        yield export_tensors(model.state_dict(), layout)


def codec(base: Model, new: Model, files: Mapping[str, bytes]) -> dict[str, float]:
    """The codec and the swap alone, in one thread, CPU seconds."""
    clock = Clock(REPEATS)
    digests = {name: tensor.digest() for name, tensor in base.items()}
    delta = encode(base, new, base_version=0, version=1, base_digests=digests)
    update = decode(delta.payload, base)
    shadows = [HostCopy.copy_of(0, base, digests) for _ in range(REPEATS)]
    behind, shadow = Behind(), HostCopy.copy_of(0, base, digests)
    behind.add([update])
    changes = behind.changes(shadow)
    spec = decoder_spec(derived_config(read_facts(files).config), base)
    assert spec is not None
    live = DecoderWeights(spec, base, compute_dtype("auto"))
    puts = [live.prepare(changes) for _ in range(REPEATS)]
    whole = np.concatenate([as_integers(tensor) for tensor in shadow.tensors.values()])
    target = np.ones_like(whole)
    return {
        "delta_bytes": float(len(delta.payload)),
        "changed": update.changed / len(whole),
        "encode_cpu_s": clock.best(lambda: encode(base, new, base_version=0, version=1, base_digests=digests)),
        "decode_cpu_s": clock.best(lambda: decode(delta.payload, base)),
        "apply_cpu_s": clock.best(lambda: apply(update, shadows.pop())),
        "prepare_cpu_s": clock.best(lambda: live.prepare(changes)),
        "pause_cpu_s": clock.best(lambda: puts.pop()()),
        "copy_cpu_s": clock.best(lambda: np.copyto(target, whole)),
        "copy_elements_cpu_s": clock.best(lambda: np.copyto(target[: update.changed], whole[: update.changed])),
    }


async def follow(files: Mapping[str, bytes], chain: Sequence[Model], *, running: int, threads: int) -> dict[str, float]:
    """Publish and follow every version; medians over the versions behind the first."""
    seconds: dict[str, list[float]] = {}
    async with contexts() as (trainer, replica):
        publisher = WeightPublisher(trainer, full_every=50)
        follower = WeightFollower(replica.bus, "solver")
        await publisher.publish(chain[0], files, version=0, step=0, batch=0)
        await follower.advance(await first_head(replica.bus, "solver"))
        assert follower.shadow is not None
        section = EngineSection(slots=max(1, running))
        engine = CpuEngine(files, follower.shadow.tensors, section=section, threads=threads)
        await engine.start()
        follower.behind.clear()
        try:
            async with decoding(engine, running, vocabulary=read_facts(files).vocab_size):
                for version, model in enumerate(chain[1:], 1):
                    began = time.perf_counter()
                    await publisher.publish(model, files, version=version, step=version, batch=version)
                    published = time.perf_counter()
                    advance = await follower.advance(await first_head(replica.bus, "solver"))
                    advanced = time.perf_counter()
                    changes = await asyncio.to_thread(follower.behind.changes, follower.shadow)
                    pause_s = await engine.swap(version, changes)
                    served = time.perf_counter()
                    follower.behind.clear()
                    for name, value in (
                        ("publish_s", published - began),
                        ("transfer_s", advance.transfer_s),
                        ("verify_s", advance.verify_s),
                        ("prepare_and_wait_s", served - advanced - pause_s),
                        ("pause_s", pause_s),
                        ("publish_to_served_s", served - began),
                    ):
                        seconds.setdefault(name, []).append(value)
        finally:
            await engine.stop()
    return {name: statistics.median(values) for name, values in seconds.items()}


async def measure(folder: Path, rate: float, arguments: argparse.Namespace) -> dict[str, float]:
    """One column: a learning rate."""
    if arguments.model == "tiny":
        chain = list(tiny_versions(folder, rate, arguments.steps))
    else:
        chain = list(versions(folder, rate, arguments.steps, answers=arguments.answers))
    files, _ = read_model(folder)
    whole = b"".join(bytes(tensor.data) for tensor in chain[0].values())
    found = {"full_bytes": float(len(whole)), **codec(chain[-2], chain[-1], files)}
    found["loopback_s"] = min([await loopback_s(whole) for _ in range(3)])
    for transport in arguments.transports:
        with tempfile.TemporaryDirectory(prefix="astraflow-full-") as store:
            seconds = await measure_full(transport, whole, Path(store), 1)
        found[f"full_{transport}_s"] = seconds["publish_s"] + seconds["load_s"]
    return found | await follow(files, chain, running=arguments.running, threads=arguments.threads)


ROWS: tuple[tuple[str, str], ...] = (
    ("full_bytes", "full, MB"),
    ("delta_bytes", "delta, MB"),
    ("changed", "changed, %"),
    ("copy_cpu_s", "bound: copy of the model in memory, CPU ms"),
    ("copy_elements_cpu_s", "bound: copy of as many elements as changed, CPU ms"),
    ("loopback_s", "bound: the model over loopback TCP, ms"),
    ("encode_cpu_s", "delta: encode with digests, CPU ms"),
    ("decode_cpu_s", "delta: decode, CPU ms"),
    ("apply_cpu_s", "delta: apply and verify, CPU ms"),
    ("prepare_cpu_s", "delta: prepare the swap, CPU ms"),
    ("pause_cpu_s", "delta: PAUSE of decoding, CPU ms"),
    ("full_nats_s", "full by nats: publish to rebuilt, ms"),
    ("full_file_s", "full by file: publish to rebuilt, ms"),
    ("full_http_s", "full by http: publish to rebuilt, ms"),
    ("publish_s", "delta: publish (encode, store, head), ms"),
    ("transfer_s", "delta: plan and fetch, ms"),
    ("verify_s", "delta: decode, apply, verify, ms"),
    ("prepare_and_wait_s", "delta: prepare, and wait for the decode step, ms"),
    ("pause_s", "delta: PAUSE of decoding, ms"),
    ("publish_to_served_s", "delta: from the step's weights to serving them, ms"),
)


def table(columns: dict[str, dict[str, Any]], title: str) -> Table:
    shown = Table("", *columns, title=title)
    for key, label in ROWS:
        scale = 1e-6 if key.endswith("bytes") else 100 if key == "changed" else 1e3
        figures = [f"{column[key] * scale:,.2f}" for column in columns.values() if key in column]
        if figures:
            shown.add_row(label, *figures)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-6, 5e-6], help="learning rates")
    parser.add_argument("--steps", type=int, default=4, help="optimizer steps per learning rate; each takes 269 MB")
    parser.add_argument("--answers", type=int, default=8, help="per question, even; fewer make the steps cheaper")
    parser.add_argument("--running", type=int, default=4, help="requests that decode meanwhile")
    parser.add_argument("--threads", type=int, default=1, help="of the engine")
    transports = ("nats", "file", "http")
    parser.add_argument("--transports", nargs="*", default=transports, choices=transports, help="of fulls")
    parser.add_argument("--model", default="smollm2", choices=("smollm2", "tiny"))
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder = prepare_smollm2() if arguments.model == "smollm2" else prepare_tiny("reverse")
    columns = {f"lr {rate:g}": asyncio.run(measure(folder, rate, arguments)) for rate in arguments.rates}
    if arguments.json:
        Console().print_json(json.dumps(columns))
    else:
        title = f"{arguments.model}, {compute_dtype('auto')} engine, {arguments.running} requests running"
        Console(width=120).print(table(columns, title))


if __name__ == "__main__":
    main()
