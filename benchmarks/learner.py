"""How fast the torch learner trains SmolLM2: long samples, and the demo's short ones with and without shared prompts.

    python benchmarks/learner.py [--threads 2] [--steps 3] [--shapes long,demo,demo-plain]
        [--ranks 1,2,4] [--json]

Tokens are random; a step costs what its shape costs. Each shape runs in a process of its own, so that its peak memory
is its own; with several ranks memory and CPU time are the lead's alone. tokens/s counts the samples' tokens, not what
was computed: sharing prompts shows as a higher rate.
"""

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from astraflow.config import RanksSection, TrainerSection
from astraflow.messages import Sample, array_of
from astraflow.messages.metric_names import (
    TRAIN_BACKWARD_S,
    TRAIN_COMPUTED_TOKENS,
    TRAIN_FORWARD_S,
    TRAIN_OPTIMIZER_S,
)
from astraflow.models.smollm2 import prepare_smollm2


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A batch of one optimizer step."""

    groups: int
    members: int
    prompt: int
    completion: int
    share: bool


SHAPES = {
    "long": Shape(groups=16, members=1, prompt=256, completion=256, share=True),
    "demo": Shape(groups=8, members=8, prompt=45, completion=14, share=True),
    "demo-plain": Shape(groups=8, members=8, prompt=45, completion=14, share=False),
}


@dataclass(frozen=True, kw_only=True)
class Result:
    """Medians over the steps after the first."""

    shape: str
    ranks: int
    threads: int
    micro_batch_tokens: int
    tokens: int
    computed_tokens: int
    step_s: float
    forward_s: float
    backward_s: float
    optimizer_s: float
    export_s: float
    cpu_s: float  # of all threads in a step: compare this on a busy machine
    tokens_per_s: float
    peak_memory_gb: float
    load_1min: float


def random_batch(shape: Shape, vocabulary: int) -> list[Sample]:
    rng = np.random.default_rng(0)
    samples = []
    mask = np.r_[np.zeros(shape.prompt), np.ones(shape.completion)]
    for group in range(shape.groups):
        prompt = rng.integers(3, vocabulary, shape.prompt)
        for member in range(shape.members):
            tokens = np.r_[prompt, rng.integers(3, vocabulary, shape.completion)]
            samples.append(
                Sample(
                    id=f"{group}/{member}#0",
                    task_id=f"{group}/{member}",
                    group_id=str(group),
                    tokens=array_of(tokens, "i4"),
                    loss_mask=array_of(mask, "u1"),
                    logprobs=array_of(-10.0 * mask, "f4"),
                    versions=(),
                    advantage=float(rng.normal()),
                    reward=0.0,
                )
            )
    return samples


def measure(name: str, folder: Path, *, ranks: int, threads: int, steps: int, micro_batch_tokens: int) -> Result:
    from astraflow.learners.factory import build_learner
    from astraflow.learners.torch_learner import TorchLearner

    shape = SHAPES[name]
    settings = TrainerSection(steps=steps, micro_batch_tokens=micro_batch_tokens, ranks=RanksSection(data=ranks))
    if shape.share:
        learner = build_learner(settings, folder, seed=0, threads=threads)
    else:
        learner = TorchLearner(folder, settings, seed=0, threads=threads, share_prefixes=False)
    samples = random_batch(shape, vocabulary=49152)
    learner.step(samples)  # allocates the optimizer's moments
    rows = []
    for _ in range(steps):
        started, cpu_started = time.perf_counter(), time.process_time()
        metrics = learner.step(samples).metrics
        stepped, cpu_s = time.perf_counter(), time.process_time() - cpu_started
        learner.export()
        rows.append({**metrics, "step_s": stepped - started, "cpu_s": cpu_s, "export_s": time.perf_counter() - stepped})
    learner.close()
    median = {key: float(np.median([row[key] for row in rows])) for key in rows[0]}
    tokens = len(samples) * (shape.prompt + shape.completion)
    return Result(
        shape=name,
        ranks=ranks,
        threads=threads,
        micro_batch_tokens=micro_batch_tokens,
        tokens=tokens,
        computed_tokens=int(median[TRAIN_COMPUTED_TOKENS]),
        step_s=median["step_s"],
        forward_s=median[TRAIN_FORWARD_S],
        backward_s=median[TRAIN_BACKWARD_S],
        optimizer_s=median[TRAIN_OPTIMIZER_S],
        export_s=median["export_s"],
        cpu_s=median["cpu_s"],
        tokens_per_s=tokens / median["step_s"],
        peak_memory_gb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        load_1min=os.getloadavg()[0],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--steps", type=int, default=3, help="measured steps per shape, after one that is not")
    parser.add_argument("--micro-batch-tokens", type=int, default=TrainerSection(steps=1).micro_batch_tokens)
    parser.add_argument("--ranks", default="1", help="numbers of ranks, each measured; the threads are shared out")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--model", type=Path, help="a model folder; default: SmolLM2-135M from its wheel")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--here", action="store_true", help="measure the one shape in this process, print JSON")
    args = parser.parse_args()
    folder = args.model or prepare_smollm2()
    if args.here:
        settings = {
            "ranks": int(args.ranks),
            "threads": args.threads,
            "steps": args.steps,
            "micro_batch_tokens": args.micro_batch_tokens,
        }
        sys.stdout.write(json.dumps(asdict(measure(args.shapes, folder, **settings))) + "\n")
        return
    results = []
    for name, ranks in itertools.product(args.shapes.split(","), args.ranks.split(",")):
        if int(ranks) > 1 and not SHAPES[name].share:
            continue  # ranks share prompts, as every learner of a run does
        options = [
            f"--ranks={ranks}",
            f"--threads={args.threads}",
            f"--steps={args.steps}",
            f"--micro-batch-tokens={args.micro_batch_tokens}",
        ]
        command = [sys.executable, __file__, "--here", f"--shapes={name}", f"--model={folder}", *options]
        # Spinning OpenMP threads lose most of their speed as soon as anything else runs on the machine.
        environment = {"OMP_WAIT_POLICY": "passive", **os.environ}
        done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
        results.append(json.loads(done.stdout))
    if args.json:
        sys.stdout.write(json.dumps(results, indent=2) + "\n")
        return
    table = Table(title=f"torch learner, SmolLM2-135M, {args.threads} threads")
    for column in results[0]:
        table.add_column(column, justify="right")
    for result in results:
        table.add_row(*(f"{value:.2f}" if isinstance(value, float) else str(value) for value in result.values()))
    Console(width=180).print(table)


if __name__ == "__main__":
    main()
