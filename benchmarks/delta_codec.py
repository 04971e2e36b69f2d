"""Size and speed of weight deltas on real optimizer steps of SmolLM2-135M, against the memory-copy limit.

    python benchmarks/delta_codec.py --rates 1e-6 5e-6 1e-5 --steps 4

Each step is a policy gradient over sampled answers to sums, then AdamW on dithered fp32 masters behind bf16 weights:
the trainer's own `MasterWeights`. Speeds are CPU seconds of one thread, the best of `--repeats`, in GB/s of model size,
so that other load on the machine counts less; the limit is a copy of the same bytes in the same run. `--candidates`
adds the encodings that were not chosen.
"""

import argparse
import random
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zstandard
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer

from astraflow.config import TrainerSection
from astraflow.learners.master import MasterWeights
from astraflow.learners.team import Alone
from astraflow.models.export import export_tensors
from astraflow.models.layout import checkpoint_layout
from astraflow.models.smollm2 import prepare_smollm2
from astraflow.weights.codec.byte_coding import split_differences, split_gaps, to_planes
from astraflow.weights.codec.delta import decode, encode_update
from astraflow.weights.codec.differences import SparseUpdate, as_integers, difference, find_changes, merge
from astraflow.weights.codec.host_copy import HostCopy, apply, apply_chain
from astraflow.weights.codec.tensors import HostTensor

Model = Mapping[str, HostTensor]
ANSWERS = 8  # per question: every second one right, rewarded +1, the others −1
ANSWER_TOKENS = 6  # at the end of the chat text, template marks included


def versions(folder: Path, learning_rate: float, steps: int, *, answers: int = ANSWERS) -> Iterator[Model]:
    """The weights before the first step and after each. Args: answers: per question, even."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    section = TrainerSection(steps=steps, learning_rate=learning_rate)
    master = MasterWeights(model, section, dtype=torch.bfloat16, dither_seed=0, team=Alone())
    rng = random.Random(0)
    layout = checkpoint_layout(model)
    yield export_tensors(model.state_dict(), layout)
    for _ in range(steps):
        for _ in range(2):
            policy_loss(model, tokenizer, rng, answers).backward()
        master.apply_gradients(master.gradient_norm(), learning_rate=learning_rate)
        yield export_tensors(model.state_dict(), layout)


def policy_loss(model: Any, tokenizer: Any, rng: random.Random, count: int) -> torch.Tensor:
    """−Σ advantage · logprob over the answer tokens of one question."""
    a, b = rng.randint(1, 9), rng.randint(1, 9)
    answers = [a + b if i % 2 else rng.randint(1, 18) for i in range(count)]
    chats = [
        [{"role": "user", "content": f"What is {a} + {b}?"}, {"role": "assistant", "content": str(answer)}]
        for answer in answers
    ]
    texts = tokenizer.apply_chat_template(chats, tokenize=False)
    batch = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left")
    logprobs_BT = torch.log_softmax(model(**batch).logits[:, :-1].float(), -1)
    chosen_BT = logprobs_BT.gather(2, batch["input_ids"][:, 1:, None]).squeeze(-1)[:, -ANSWER_TOKENS:]
    advantages_B = torch.tensor([1.0 if i % 2 else -1.0 for i in range(count)])
    return -(chosen_BT * advantages_B[:, None]).mean()


class Clock:
    """CPU seconds of the calling thread, the best of several runs."""

    def __init__(self, repeats: int) -> None:
        self._repeats = repeats

    def best(self, work: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
        seconds = []
        for _ in range(self._repeats):
            before()
            start = time.thread_time()
            work()
            seconds.append(time.thread_time() - start)
        return min(seconds)


def measure_speeds(base: Model, new: Model, update: SparseUpdate, clock: Clock) -> dict[str, float]:
    """Seconds by what was done."""
    digests = {name: tensor.digest() for name, tensor in base.items()}
    payload = encode_update(update).payload
    whole = np.concatenate([np.frombuffer(tensor.data, np.uint8) for tensor in new.values()])
    copy = whole.copy()
    shadow = HostCopy.copy_of(update.base_version, base, digests)

    def scatter(decoded: SparseUpdate) -> None:
        for name, tensor in decoded.tensors.items():
            as_integers(shadow.tensors[name])[tensor.positions] += tensor.differences

    def reset() -> None:
        nonlocal shadow
        shadow = HostCopy.copy_of(update.base_version, base, digests)

    decoded = decode(payload, base)
    return {
        "copy (the limit)": clock.best(lambda: np.copyto(copy, whole)),
        "sha256 of all tensors": clock.best(lambda: [tensor.digest() for tensor in new.values()]),
        "find changes": clock.best(lambda: [find_changes(base[name], new[name]) for name in base]),
        "pack": clock.best(lambda: encode_update(update)),
        "unpack": clock.best(lambda: decode(payload, base)),
        "scatter": clock.best(lambda: scatter(decoded), reset),
        "apply: scatter + verify": clock.best(lambda: apply(decoded, shadow), reset),
    }


def candidates(new: Model, update: SparseUpdate, clock: Clock) -> Iterator[tuple[str, int, float]]:
    """Encodings of positions and values: name, bytes, seconds to compress what is already split into streams."""
    whole = np.concatenate([as_integers(new[name]) for name in sorted(new)])
    starts = dict(
        zip(sorted(new), np.cumsum([0, *(len(as_integers(new[name])) for name in sorted(new))]), strict=False)
    )
    positions = np.concatenate([tensor.positions + starts[name] for name, tensor in update.tensors.items()])
    differences = np.concatenate([tensor.differences for tensor in update.tensors.values()])
    gap_bytes, wide_gaps = split_gaps(positions)
    small, wide = split_differences(differences)
    gaps = np.diff(positions, prepend=-1) - 1
    turns, rests = np.divmod(gaps, 255)
    runs = np.full(len(gaps) + int(turns.sum()), 255, np.uint8)
    runs[np.cumsum(turns + 1) - 1] = rests
    changed, dense = np.zeros(len(whole), bool), np.zeros_like(whole)
    changed[positions], dense[positions] = True, differences
    encodings: dict[str, tuple[list[Any], tuple[int, ...]]] = {
        "positions: u32": ([positions.astype("<u4")], (0, 1)),
        "positions: bit mask": ([np.packbits(changed)], (1,)),
        "positions: gap bytes, runs of 255": ([runs], (1,)),
        "positions: gaps as two byte planes": ([(gaps & 255).astype("u1"), (gaps >> 8).astype("<u2")], (1,)),
        "positions: gap bytes + wide planes": ([gap_bytes, np.frombuffer(to_planes(wide_gaps), "u1")], (0, 1, 3, 9)),
        "values: u16 new values": ([whole[positions]], (0, 1)),
        "values: u16 differences": ([differences], (1,)),
        "values: int8 + wide u16": ([small, wide], (1,)),
        "values: int8 + wide planes": ([small, np.frombuffer(to_planes(wide), "u1")], (0, 1, 3, 9)),
        "both: differences of the whole model": ([dense], (1,)),
    }
    for name, (streams, levels) in encodings.items():
        for level in levels:
            compress = zstandard.ZstdCompressor(level=level).compress if level else bytes
            size = sum(len(compress(stream.tobytes())) for stream in streams)
            seconds = clock.best(lambda streams=streams, c=compress: [c(stream.tobytes()) for stream in streams])
            yield f"{name}, {f'zstd-{level}' if level else 'raw'}", size, seconds


def report(console: Console, chain: list[Model], learning_rate: float, arguments: argparse.Namespace) -> None:
    """The tables of one learning rate; `chain` is consecutive versions."""
    clock = Clock(arguments.repeats)
    full_bytes = sum(tensor.data.nbytes for tensor in chain[0].values())
    elements = sum(len(as_integers(tensor)) for tensor in chain[0].values())
    digests = [{name: tensor.digest() for name, tensor in model.items()} for model in chain[:-1]]
    updates = [
        difference(chain[i], chain[i + 1], base_version=i, version=i + 1, base_digests=digests[i])
        for i in range(len(chain) - 1)
    ]
    sizes = Table("delta", "changed", "bytes", "bytes/change", "full is … times larger", title=f"lr {learning_rate:g}")
    rows = [(f"v{u.base_version} → v{u.version}", u) for u in updates]
    merged = merge(updates)
    for label, update in [*rows, (f"v0 → v{merged.version} merged", merged)]:
        size, changed = len(encode_update(update).payload), max(1, update.changed)
        share = f"{update.changed / elements:.2%}"
        sizes.add_row(label, share, f"{size:,}", f"{size / changed:.3f}", f"{full_bytes / size:.0f}")
    console.print(sizes)
    seconds = measure_speeds(chain[-2], chain[-1], updates[-1], clock)
    seconds["encode: find + pack"] = seconds["find changes"] + seconds["pack"]
    seconds["encode with digests"] = seconds["encode: find + pack"] + seconds["sha256 of all tensors"]
    seconds["decode + scatter"] = seconds["unpack"] + seconds["scatter"]
    seconds["decode + apply verified"] = seconds["unpack"] + seconds["apply: scatter + verify"]
    seconds[f"merge {len(updates)} updates"] = clock.best(lambda: merge(updates))
    shadows = [HostCopy.copy_of(0, chain[0], digests[0]) for _ in range(arguments.repeats)]
    seconds[f"apply {len(updates)} updates verified"] = clock.best(lambda: apply_chain(updates, shadows.pop()))
    speeds = Table("of the last delta", "CPU ms", "GB/s of model", "× the copy")
    for label, value in seconds.items():
        times = value / seconds["copy (the limit)"]
        speeds.add_row(label, f"{1e3 * value:.1f}", f"{full_bytes / value / 1e9:.2f}", f"{times:.1f}")
    console.print(speeds)
    if arguments.candidates:
        table = Table("encoding of the last delta", "bytes/change", "CPU ms")
        for label, size, value in candidates(chain[-1], updates[-1], clock):
            table.add_row(label, f"{size / updates[-1].changed:.3f}", f"{1e3 * value:.1f}")
        console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-6, 5e-6, 1e-5], help="learning rates")
    parser.add_argument("--steps", type=int, default=4, help="optimizer steps per learning rate; each takes 269 MB")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--candidates", action="store_true", help="measure the encodings that were not chosen too")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    console, folder = Console(), prepare_smollm2()
    for learning_rate in arguments.rates:
        report(console, list(versions(folder, learning_rate, arguments.steps)), learning_rate, arguments)


if __name__ == "__main__":
    main()
