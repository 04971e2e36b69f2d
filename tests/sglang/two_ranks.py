"""SGLang's own model classes as rank 0 and rank 1 of two, in one process: elements give what a full load gives.

Run by SGLang's interpreter (`sglang_loader_live.py` does), with `serverside` on PYTHONPATH. The ranks are pretended by
SGLang's context, so collectives don't run; loaders don't need them. Writes one line per model and rank.
Not pytest: that venv has none.
"""

import logging
import socket
import sys
import tempfile

import torch
from astraflow_sglang.memory import fingerprint
from astraflow_sglang.reading import Entry
from astraflow_sglang.tracing import traces_of
from astraflow_sglang.writing import check, write
from sglang.srt import runtime_context
from sglang.srt.distributed import parallel_state
from sglang.srt.models.llama import LlamaForCausalLM
from sglang.srt.models.qwen2 import Qwen2ForCausalLM
from sglang.srt.models.qwen3 import Qwen3ForCausalLM
from sglang.srt.models.qwen3_moe import Qwen3MoeForCausalLM
from transformers import AutoConfig, AutoModelForCausalLM

LOG = logging.getLogger("two_ranks")
SHAPE = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16}
SHAPE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 1}
CLASSES = {
    "llama": (LlamaForCausalLM, {"attention_bias": True, "tie_word_embeddings": False}),
    "llama-one-kv-head": (LlamaForCausalLM, {"model_type": "llama", "num_key_value_heads": 1}),
    "qwen2": (Qwen2ForCausalLM, {"tie_word_embeddings": True}),
    "qwen3": (Qwen3ForCausalLM, {"tie_word_embeddings": True}),
    "qwen3_moe": (Qwen3MoeForCausalLM, {"tie_word_embeddings": False, **EXPERTS}),
}


def bits(tensor):
    return tensor.detach().contiguous().view(torch.int16).flatten()


def entry(name, old, new, whole):
    raw = bits(new).view(torch.uint8).numpy()
    if whole:
        return Entry(name, new.dtype, tuple(new.shape), None, raw)
    where = (bits(old) != bits(new)).nonzero().flatten()
    values = bits(new)[where].view(torch.uint8).numpy()
    return Entry(name, new.dtype, tuple(new.shape), where.numpy().astype("uint32"), values)


def memory(model):
    return {name: bits(parameter).tolist() for name, parameter in model.named_parameters()}


def check_rank(kind, rank):
    architecture, settings = CLASSES[kind]
    config = AutoConfig.for_model(**{"model_type": kind, **SHAPE, **settings})
    config.torch_dtype = torch.bfloat16
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as folder:  # under the names of files, which aren't those in memory
        AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(folder)
        from safetensors.torch import load_file

        old = load_file(f"{folder}/model.safetensors")
    new = {n: torch.where(torch.rand(t.shape) < 0.1, torch.randn(t.shape).to(t.dtype), t) for n, t in old.items()}
    sizes = {f"{group}_size": 2 for group in ("tp", "attn_tp", "moe_tp")}
    ranks = {f"{group}_rank": rank for group in ("tp", "attn_tp", "moe_tp")}
    ranks |= {f"{group}_rank": 0 for group in ("pp", "moe_ep", "moe_dp", "attn_cp", "dcp", "attn_dcp", "attn_dp")}
    with runtime_context.get_parallel().override(**sizes, **ranks):
        torch.set_default_dtype(torch.bfloat16)
        try:
            model, reference = architecture(config), architecture(config)
        finally:
            torch.set_default_dtype(torch.float32)
        model.load_weights(old.items())
        reference.load_weights(old.items())
        reference.load_weights(new.items())
        before = fingerprint(model)
        traces = traces_of(model, {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in old.items()})
        assert fingerprint(model) == before, f"tracing wrote into {kind}"
        untraceable = {name: trace.why for name, trace in traces.items() if not trace.windows}
        assert not untraceable, untraceable
        entries = [entry(name, old[name], new[name], whole=False) for name in old]
        check(entries, traces)
        write(model, entries, traces)
        assert memory(model) == memory(reference), f"{kind}, rank {rank}"
    LOG.info("%s, rank %d of 2: %d tensors, exact", kind, rank, len(old))


def main():
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout, force=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    override = runtime_context.get_context().override_server_args(device="cpu")
    override.install()
    parallel_state.init_distributed_environment(1, 0, address, 0, backend="gloo")
    parallel_state.initialize_model_parallel(backend="gloo")
    runtime_context._validate_parallel = lambda *_: None  # it would miss the other rank's process
    for kind in CLASSES:
        for rank in (0, 1):
            check_rank(kind, rank)


if __name__ == "__main__":
    main()
