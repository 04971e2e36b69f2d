"""What works for which family of models: tiny random ones, through engine, learner, export and transformers again.

    python benchmarks/families.py [FAMILY …] [--readme README.md]

For each family transformers builds and saves a model of some ten thousand weights, and then
- the embedded engine samples from the folder; its logprobs are compared with transformers',
- the learner takes two steps on what an engine with its weights sampled, comparing logprobs before each,
- what it exports is loaded by transformers, and compared with an engine that serves the same weights.
With --readme the table between the two marks in that file is written anew. fp32 on the CPU; numbers are the largest
distance between two logprobs of 24 sampled tokens, in nats. About 2 s a family.
"""

import argparse
import asyncio
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from astraflow.config import EngineSection, TrainerSection
from astraflow.engines.base import EngineRequest
from astraflow.engines.cpu import CpuEngine
from astraflow.errors import ConfigError
from astraflow.learners.torch_learner import TorchLearner
from astraflow.messages import Sample, Sampling, array_of
from astraflow.models.loading import load_tensors

PROMPT = list(range(5, 25))
ENGINE = EngineSection(slots=4, dtype="fp32", kv_cache_mib=64, prefill_tokens=8)
TRAINER = TrainerSection(steps=1, learning_rate=1e-3, dtype="fp32", dither=False)
BOUND = 1e-4
NATIVE = "SlotDecoder"
MARKS = ("<!-- families -->", "<!-- /families -->")

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "eos_token_id": 1,
    "bos_token_id": 0,
    "pad_token_id": 0,
    "initializer_range": 0.2,
}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LOCAL: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
WIDE: dict[str, Any] = {"head_dim": 16}
GPT: dict[str, Any] = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "llama, untied": {"model_type": "llama", "tie_word_embeddings": False},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": WIDE,
    "qwen2_moe": EXPERTS | {"shared_expert_intermediate_size": 32},
    "qwen3_moe": EXPERTS | WIDE,
    "mistral": WIDE | {"sliding_window": 8},
    "mixtral": LOCAL | WIDE,
    "gemma": WIDE,
    "gemma2": WIDE | {"sliding_window": 8, "query_pre_attn_scalar": 16},
    "gemma3_text": WIDE | {"sliding_window": 8, "query_pre_attn_scalar": 16},
    "phi": {},
    "phi3": {},
    "smollm3": {},
    "olmo2": {},
    "olmo3": {"sliding_window": 8},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "granite": {"logits_scaling": 2.0, "attention_multiplier": 0.1, "embedding_multiplier": 3.0},
    "granitemoe": LOCAL,
    "glm4": WIDE,
    "exaone4": {"sliding_window": 8},
    "deepseek_v3": {
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "n_shared_experts": 1,
        "num_key_value_heads": 4,
    },
    "gpt_oss": LOCAL | WIDE | {"sliding_window": 8},
    "cohere": {},
    "starcoder2": {},
    "lfm2": {},
    "gpt_neox": {},
    "gpt2": GPT,
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "mamba": {"state_size": 8},
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """What was run for one family. A distance is None where that was refused; `refusals` says why."""

    family: str
    decoder: str = ""  # native | fallback; "" = refused
    served: float | None = None  # engine against transformers
    trained: float | None = None  # learner against engine
    reloaded: float | None = None  # the exported model in transformers against engine
    refusals: tuple[str, ...] = ()

    @property
    def distances(self) -> list[float]:
        return [each for each in (self.served, self.trained, self.reloaded) if each is not None]


def build(family: str, folder: Path, **changes: Any) -> Any:
    """Save a random model into a folder; returns transformers' own."""
    settings = {**SIZES, **FAMILIES[family], **changes}
    config = transformers.AutoConfig.for_model(settings.pop("model_type", family), **settings)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():  # norms and biases start at 1 and 0, which would hide that they are applied
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.1 * torch.randn(parameter.shape)
    model.save_pretrained(folder)
    return model


def examine(family: str, folder: Path, **changes: Any) -> Row:
    """Run everything for one family, in an empty folder."""
    source, target = folder / "model", folder / "exported"
    target.mkdir()
    model = build(family, source, **changes)
    found: dict[str, Any] = {}
    refusals: list[str] = []
    try:
        tokens, logprobs, decoder = asyncio.run(_sampled(CpuEngine(*load_tensors(source), section=ENGINE)))
        found |= {"decoder": "native" if decoder == NATIVE else "fallback", "served": _apart(model, tokens, logprobs)}
    except ConfigError as exc:
        refusals.append(f"engine: {_without(exc, source)}")
    try:
        found |= _train(source, target)
    except ConfigError as exc:
        refusals.append(f"learner: {_without(exc, source)}")
    return Row(family=family, refusals=tuple(refusals), **found)


def _train(source: Path, target: Path) -> Mapping[str, float]:
    learner = TorchLearner(source, TRAINER, seed=0, threads=1)
    apart = []
    for _ in range(2):
        tokens, logprobs, _ = asyncio.run(_sampled(_serving(learner)))
        apart.append(learner.step(_samples(tokens, logprobs)).metrics["train.mismatch_max"])
    learner.export_model(target)
    model = transformers.AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    tokens, logprobs, _ = asyncio.run(_sampled(_serving(learner)))
    return {"trained": max(apart), "reloaded": _apart(model, tokens, logprobs)}


def _serving(learner: TorchLearner) -> CpuEngine:
    return CpuEngine(learner.model_files(), learner.export(), section=ENGINE)


async def _sampled(engine: CpuEngine) -> tuple[list[int], list[float], str]:
    """24 tokens of an engine that isn't started yet, their logprobs, and what computed them."""
    try:
        await engine.start()
        return await _drawn(engine)
    finally:
        await engine.stop()


async def _drawn(engine: CpuEngine) -> tuple[list[int], list[float], str]:
    tokens: list[int] = []
    logprobs: list[float] = []
    sampling = Sampling(max_new_tokens=24, ignore_eos=True)
    request = EngineRequest(id="r", prompt_tokens=np.array(PROMPT, np.int32), seed=3, sampling=sampling)
    async for chunk in engine.generate(request):
        tokens += chunk.tokens.tolist()
        logprobs += chunk.logprobs.tolist()
    return tokens, logprobs, type(engine._model).__name__


def _samples(tokens: Sequence[int], logprobs: Sequence[float]) -> list[Sample]:
    before = [0] * len(PROMPT)
    return [
        Sample(
            id=f"g/{member}#0",
            task_id=f"g/{member}",
            group_id="g",
            tokens=array_of([*PROMPT, *tokens], "i4"),
            loss_mask=array_of([*before, *[1] * len(tokens)], "u1"),
            logprobs=array_of([*before, *logprobs], "f4"),
            versions=(),
            advantage=advantage,
            reward=0.0,
        )
        for member, advantage in ((0, 1.0), (1, -0.5))
    ]


def _apart(model: Any, tokens: Sequence[int], logprobs: Sequence[float]) -> float:
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([[*PROMPT, *tokens]])).logits[0, len(PROMPT) - 1 : -1]
    right = torch.log_softmax(logits.float(), -1).gather(1, torch.tensor(tokens)[:, None])[:, 0].numpy()
    return float(np.abs(right - np.array(logprobs)).max())


def _without(exc: ConfigError, folder: Path) -> str:
    return re.sub(rf"(model folder )?{re.escape(str(folder))}(:| is)? ?", "", str(exc)).strip()


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown."""
    lines = [
        "| family | engine | against transformers | learner against engine | exported, reloaded |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [_cell(value) for value in (row.served, row.trained, row.reloaded)]
        lines.append(f"| {row.family} | {row.decoder or 'refused'} | {' | '.join(cells)} |")
    notes = [f"- {row.family}: {text}" for row in rows for text in row.refusals]
    return "\n".join([*lines, "", *notes]).strip()


def _cell(value: float | None) -> str:
    return "refused" if value is None else f"{value:.0e}"


def main(arguments: list[str]) -> int:
    """1 if a family that isn't refused is further apart than BOUND."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", default=list(FAMILIES), metavar="FAMILY")
    parser.add_argument("--readme", type=Path, help="the file whose table is written anew")
    args = parser.parse_args(arguments)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    rows = []
    for family in args.families:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(examine(family, Path(folder)))
    text = table(rows)
    sys.stdout.write(f"{text}\n")
    if args.readme:
        whole = args.readme.read_text(encoding="utf-8")
        before, rest = whole.split(MARKS[0])
        args.readme.write_text(f"{before}{MARKS[0]}\n{text}\n{MARKS[1]}{rest.split(MARKS[1])[1]}", encoding="utf-8")
    return int(any(each > BOUND for row in rows for each in row.distances))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
